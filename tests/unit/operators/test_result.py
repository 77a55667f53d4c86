# SPDX-License-Identifier: Apache-2.0
"""The result of a task is small, complete, and the same for each outlet."""

from __future__ import annotations

from typing import Any

import pytest
from airflow.sdk import Asset, AssetAlias
from airflow.sdk.execution_time.context import OutletEventAccessors

from airflow_provider_raybatch.exceptions import RayBatchException, RayBatchFailException
from airflow_provider_raybatch.links.ray_dashboard import RayDashboardLink
from airflow_provider_raybatch.operators.ray_job import RayJobOperator
from tests.support.airflow_tasks import Run
from tests.support.batches import batch, defer, left
from tests.support.fake_ray import FakeRay, Script, committing, lasting


def test_goes_to_each_outlet_asset(ray: FakeRay, run: Run) -> None:
    asset = Asset("s3://lake/out/")
    result = batch(outlets=[asset]).execute(run.context())
    extra = run.outlet_events[asset].extra
    assert extra["manifest_uri"] == result["manifest_uri"]
    assert (extra["rows"], extra["resumed"], extra["errors"], extra["tokens"]["output"]) == (2, 1, 1, 6)
    assert not {"bucket", "key_prefix", "dashboard_url"} & set(extra)
    assert list(extra)[:6] == list(result)[:6] == ["rows", "errors", "tokens", "seconds", "cost", "currency"]
    assert list(extra)[-4:] == ["uri", "manifest_uri", "report_uri", "dead_letter_uri"]
    assert (result["cost"], result["currency"], result["savings"]["reused"]) == (1.5, "EUR", 8)


def test_goes_to_each_outlet_alias(ray: FakeRay, run: Run) -> None:
    for destination in ("s3://lake/out/", "/out"):
        alias, accessor = AssetAlias(destination), OutletEventAccessors()
        context = {**run.context(), "outlet_events": accessor}
        result = batch(outlets=[alias], destination=destination).execute(context)
        (event,) = accessor[alias].asset_alias_events
        assert event.dest_asset_key.uri == destination.rstrip("/")
        assert ("bucket" in result) is ("key_prefix" in result) is destination.startswith("s3://")
        assert (event.extra["manifest_uri"], event.extra["rows"]) == (result["manifest_uri"], 2)
        run.clear()


def test_of_any_entrypoint(ray: FakeRay, run: Run) -> None:
    result = RayJobOperator(task_id="t", entrypoint="python x.py", poll_interval=0.05).execute(run.context())
    (submission_id,) = ray.jobs
    assert result == {
        "submission_id": submission_id,
        "status": "SUCCEEDED",
        "dashboard_url": f"{ray.url}/#/jobs/{submission_id}",
    }


def test_the_link_is_there_while_the_job_runs(ray: FakeRay, run: Run) -> None:
    ray.script = lasting(600)
    defer(run)
    (submission_id,) = ray.jobs
    assert run.xcoms == {"_link_RayDashboardLink": f"{ray.url}/#/jobs/{submission_id}"}


def test_the_link_outlives_the_worker(ray: FakeRay, run: Run) -> None:
    operator = batch()
    result = operator.execute(run.context())
    assert RayDashboardLink().get_link(operator, ti_key=None) == result["dashboard_url"]  # type: ignore[arg-type]


def test_without_a_link_the_job_is_followed_all_the_same(ray: FakeRay, run: Run) -> None:
    def away(key: str, value: Any) -> None:
        raise ConnectionError("the API server is away")

    context = run.context()
    context["ti"].xcom_push = away
    assert batch().execute(context)["rows"] == 2


def test_no_link_is_shown_without_a_job(ray: FakeRay, run: Run) -> None:
    operator = left(batch(), limit=0)
    with pytest.raises(RayBatchFailException):
        operator.execute(run.context())
    assert RayDashboardLink().get_link(operator, ti_key=None) == ""  # type: ignore[arg-type]


def test_without_a_readable_log_is_worth_a_retry(ray: FakeRay, run: Run) -> None:
    ray.script = lambda ray, body: Script(["nothing of ours"])
    with pytest.raises(RayBatchException, match="its log is gone; a retry finds the dataset"):
        batch().execute(run.context())
    ray.script = committing
    assert batch().execute(run.context())["rows"] == 2
    assert [name[-2:] for name in ray.jobs] == ["-0", "-1"]
