# SPDX-License-Identifier: Apache-2.0
"""Numbers of the task's last run come out of an XCom, which others may have written."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_raybatch.contract.base import parse
from airflow_provider_raybatch.contract.run_numbers import LastRun
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.operators.handover import numbers_of
from tests.support.airflow_tasks import Run
from tests.support.batches import batch
from tests.support.fake_ray import FakeRay

RESULT = {
    "uri": "s3://lake/data/1", "manifest_uri": "s3://lake/manifests/1.json", "format": "parquet",
    "rows": 300, "errors": 1, "resumed": 0, "reused": 7, "duplicates": 2, "chunks": None,
    "tokens": {"input": 900, "cached": 0, "output": 600, "filled": 0, "reasoning": None},
    "tokens_paid": 1400, "tokens_saved": 100, "gpu_seconds": 60.5, "seconds": 12.5,
    "cost": 0.065, "currency": "EUR", "submission_id": "raybatch-x-0", "dashboard_url": None,
}  # fmt: skip


def test_numbers_of_a_result() -> None:
    assert numbers_of(RESULT) == LastRun(
        rows=300,
        errors=1,
        seconds=12.5,
        input_tokens=900,
        output_tokens=600,
        tokens_paid=1400,
        gpu_seconds=60.5,
        cost=0.065,
        currency="EUR",
        resumed=0,
        reused=7,
        duplicates=2,
    )


@pytest.mark.parametrize(
    "changed",
    [
        {"cost": "<script>"}, {"seconds": float("nan")}, {"seconds": float("inf")}, {"seconds": 10**400},
        {"tokens": "s3://other/"}, {"tokens": {"input": -1, "output": True}}, {"currency": "javascript:"},
        {"gpu_seconds": None}, {"resumed": 1.5}, {"reused": 2**70},
    ],
    ids=str,
)  # fmt: skip
def test_what_is_no_number_is_left_out(changed: dict[str, Any]) -> None:
    (name,) = changed
    found = numbers_of({**RESULT, **changed})
    assert found is not None
    names = ["input_tokens", "output_tokens"] if name == "tokens" else [name]
    assert [getattr(found, one) for one in names] == [None] * len(names)
    assert found.rows == 300


@pytest.mark.parametrize(
    "changed", [{"rows": True}, {"rows": "300"}, {"errors": None}, {"errors": -1}], ids=str
)
def test_without_rows_there_is_no_last_run(changed: dict[str, Any]) -> None:
    assert numbers_of({**RESULT, **changed}) is None


def test_a_job_gets_the_numbers_and_stays_the_same(ray: FakeRay, run: Run) -> None:
    plain = batch().execute(run.context())
    other = Run(run_id="later")
    other.returned_before = RESULT
    batch().execute(other.context())
    first, second = (ray.spec(job.body) for job in ray.jobs.values())
    assert first["last_run"] is None
    assert second["last_run"]["rows"] == 300
    assert "uri" not in second["last_run"]
    assert parse(BatchInferenceSpec, first).fingerprint == parse(BatchInferenceSpec, second).fingerprint
    assert plain["rows"] == 2
