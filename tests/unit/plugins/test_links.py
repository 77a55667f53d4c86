# SPDX-License-Identifier: Apache-2.0
"""Links from a task to its report."""

from __future__ import annotations

from typing import Any

import pytest
from airflow.sdk.types import TaskInstanceKey

from airflow_provider_raybatch.decorators.ray_batch import RayBatchDecoratedOperator
from airflow_provider_raybatch.links.report import (
    DatasetLink,
    FailedRowsLink,
    ReportLink,
    report_path,
    task_path,
)
from airflow_provider_raybatch.operators.ray_batch import RayBatchInferenceOperator
from airflow_provider_raybatch.plugins.raybatch import RayBatchPlugin
from tests.support.airflow_server import Server, ran

KEY = TaskInstanceKey(
    dag_id="nightly", task_id="a.b", run_id="manual__2026-11-01T00:00:00+00:00", map_index=3
)


def url(link: Any) -> str:
    return str(link.get_link(None, ti_key=KEY))


def test_links_lead_to_pages_of_the_plugin() -> None:
    base = "/raybatch/dags/nightly/runs/manual__2026-11-01T00%3A00%3A00%2B00%3A00/tasks/a.b/3"
    assert url(ReportLink()) == base
    assert url(FailedRowsLink()) == f"{base}/failed"
    assert url(DatasetLink()) == f"{base}/dataset"


def test_links_are_below_the_base_url(monkeypatch: pytest.MonkeyPatch) -> None:
    """Airflow may be served below a path; the host is that of whoever looks."""
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "https://user.example.com/air/flow/")
    assert url(ReportLink()).startswith("/air/flow/raybatch/dags/nightly/")


def test_odd_ids_stay_parts_of_the_path() -> None:
    assert report_path("a/../b", "?x#y", "<t>") == "/dags/a%2F..%2Fb/runs/%3Fx%23y/tasks/%3Ct%3E/-1"
    assert task_path("a/b", "c d") == "/dags/a%2Fb/tasks/c%20d"


def test_links_belong_to_the_operators() -> None:
    """The API server compares names alone, so that it need not import the operators."""
    operators = (RayBatchInferenceOperator, RayBatchDecoratedOperator)
    real = {(one.__module__, one.__name__) for one in operators}
    real.add(("airflow_provider_raybatch.batch_api.dags.operators", "ServedBatchOperator"))
    for link in RayBatchPlugin.operator_extra_links:
        assert {(one.__module__, one.__name__) for one in link.operators} == real


@pytest.mark.parametrize("task_id", ["label", "decorated"])
def test_airflow_shows_the_links_of_a_task_that_failed(server: Server, task_id: str) -> None:
    """No worker has written an XCom for them."""
    ran(None, state="failed", task_id=task_id)
    answer = server.get(f"/api/v2/dags/nightly/dagRuns/night/taskInstances/{task_id}/links").json()
    found = {name: link for name, link in answer["extra_links"].items() if name != "Ray Dashboard"}
    base = f"/raybatch/dags/nightly/runs/night/tasks/{task_id}/-1"
    assert found == {"Report": base, "Failed rows": f"{base}/failed", "Dataset": f"{base}/dataset"}


def test_airflow_shows_the_links_of_a_mapped_task(server: Server) -> None:
    ran(None, state="running", task_id="mapped", map_index=1)
    answer = server.get("/api/v2/dags/nightly/dagRuns/night/taskInstances/mapped/links?map_index=1").json()
    assert answer["extra_links"]["Report"] == "/raybatch/dags/nightly/runs/night/tasks/mapped/1"


def test_other_tasks_have_no_links(server: Server) -> None:
    ran(None, task_id="plain")
    answer = server.get("/api/v2/dags/nightly/dagRuns/night/taskInstances/plain/links").json()
    assert answer["extra_links"] == {}


def test_airflow_offers_the_tabs(server: Server) -> None:
    views = server.get("/api/v2/plugins", "admin").json()["plugins"][0]["external_views"]
    assert {view["destination"]: view["href"] for view in views} == {
        "task_instance": "raybatch/dags/{DAG_ID}/runs/{RUN_ID}/tasks/{TASK_ID}/{MAP_INDEX}",
        "task": "raybatch/dags/{DAG_ID}/tasks/{TASK_ID}",
    }


def test_an_airflow_that_can_not_serve_pages_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise ImportError("no FastAPI here")

    monkeypatch.setattr("airflow_provider_raybatch.plugins.app.make_app", fail)
    assert RayBatchPlugin().fastapi_apps == []
