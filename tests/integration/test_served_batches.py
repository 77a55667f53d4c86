# SPDX-License-Identifier: Apache-2.0
"""Served DAGs through Airflow's own task runner and trigger, on a real Ray, on a disk and on S3."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider_raybatch.batch_api.dags import serve_batches
from airflow_provider_raybatch.batch_api.store.ending import dataset_of
from airflow_provider_raybatch.batch_api.store.records import BatchRecord, Started
from airflow_provider_raybatch.batch_api.store.store import BatchStore
from airflow_provider_raybatch.contract.arguments.openai_batch import BatchOutcome
from airflow_provider_raybatch.contract.layout import PROBES
from tests.support.airflow_tasks import airflow_db, dag_test, installation  # noqa: F401 - fixtures
from tests.support.batch_api import MODEL, configured, content_of, created, line, state_of
from tests.support.s3_server import S3Server

if TYPE_CHECKING:
    from .conftest import RayCluster

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

ROWS = 5
SECRET_TEXT = "what ann asks"


@pytest.fixture
def store(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    ray_cluster: RayCluster,
) -> BatchStore:
    host, _, port = ray_cluster.url.removeprefix("http://").partition(":")
    ray = {"conn_type": "ray", "host": host, "port": int(port), "password": ray_cluster.address.token}
    monkeypatch.setenv("AIRFLOW_CONN_RAY_DEFAULT", json.dumps(ray))
    if getattr(request, "param", "disk") == "disk":
        return configured(monkeypatch, tmp_path)
    s3: S3Server = request.getfixturevalue("s3")
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", json.dumps({"conn_type": "aws", **s3.connection()}))
    return configured(monkeypatch, f"s3://{s3.new_bucket()}/batch-api", "lake")


@pytest.fixture
def run_batch(
    store: BatchStore, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Any]:
    run_dag = request.getfixturevalue("dag_test")

    def run(record: BatchRecord, **arguments: Any) -> Any:
        from airflow.models.dagrun import DagRun

        model = {"engine": "echo", "poll_interval": 0.5, "dag_id": record.dag_id, **arguments}
        monkeypatch.setenv("AIRFLOW__RAYBATCH__BATCH_API_MODELS", json.dumps({MODEL: model}))
        monkeypatch.setattr(DagRun, "generate_run_id", lambda **_: record.id)
        (dag,) = serve_batches([MODEL])
        of_this_run = dag.test
        monkeypatch.setattr(dag, "test", lambda: of_this_run(run_conf={"batch_id": record.id}))
        return run_dag(dag)

    return run


def lines_of(store: BatchStore, file_id: str | None) -> list[dict[str, Any]]:
    file = store.file(str(file_id))
    assert file is not None
    content = content_of(store.root, file)
    assert len(content) == file.bytes
    return [json.loads(text) for text in content.splitlines()]


def requests(*bad: int) -> bytes:
    asked = [
        line(
            n, messages=[{"role": "user", "content": f"{SECRET_TEXT} {n}"}], **({"n": -1} if n in bad else {})
        )
        for n in range(ROWS)
    ]
    return "".join(json.dumps(one) + "\n" for one in asked).encode()


@pytest.mark.parametrize(
    ("store", "deferrable"),
    [
        pytest.param("disk", False, id="disk"),
        pytest.param("s3", True, id="s3"),
    ],
    indirect=["store"],
)
def test_a_batch_is_answered_by_its_dag_run(
    store: BatchStore, run_batch: Any, deferrable: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    mode = "deferrable" if deferrable else "blocking"
    record = created(store, requests(2), dag_id=f"batches_{mode}_{id(store)}")

    assert run_batch(record, deferrable=deferrable).state == "success"

    end = state_of(store, record).ended
    assert end is not None
    assert (end.decision, end.counts.total, end.counts.completed, end.counts.failed) == (
        "completed",
        ROWS,
        4,
        1,
    )
    answers, failures = lines_of(store, end.output_file_id), lines_of(store, end.error_file_id)
    assert sorted(one["custom_id"] for one in answers) == ["r0", "r1", "r3", "r4"]
    assert [one["custom_id"] for one in failures] == ["r2"]
    assert {one["response"]["status_code"] for one in answers} == {200}
    used = [one["response"]["body"]["usage"] for one in answers]
    assert end.usage.input_tokens == sum(one["prompt_tokens"] for one in used)
    assert end.usage.output_tokens == sum(one["completion_tokens"] for one in used)
    told = capfd.readouterr()
    assert SECRET_TEXT not in told.out + told.err


def test_a_cancelled_batch_keeps_its_lines(store: BatchStore, run_batch: Any) -> None:
    """Its job died on its way to the claim; the next one publishes what is finished, and asks no model."""
    record = created(store, requests(), dag_id=f"batches_cancelled_{id(store)}")
    store.start(record.id, Started(at=1.0, total=ROWS, nonce="n"))
    store.decide(record.id, BatchOutcome(decision="cancelled", at=2.0, nonce="n"))
    store.root.write(f"{dataset_of(record.id)}/{PROBES}/of_a_dead_job", b"")

    assert run_batch(record).state == "success"

    end = state_of(store, record).ended
    assert end is not None
    assert (end.decision, end.output_file_id) == ("cancelled", None)
    assert (end.counts.total, end.counts.completed, end.counts.failed) == (ROWS, 0, 0)
    codes = {one["error"]["code"] for one in lines_of(store, end.error_file_id)}
    assert codes == {"batch_cancelled"}
