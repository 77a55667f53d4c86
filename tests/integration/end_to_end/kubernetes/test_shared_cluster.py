# SPDX-License-Identifier: Apache-2.0
"""Tasks that share a cluster: it is made once, keeps an engine between them, and goes in the end.

It runs on the STAND-IN for a Kubernetes, with real Ray processes as pods.
"""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_raybatch.dataset import open_dataset
from tests.support.engine_log import Engine, engines
from tests.support.kubernetes.place import Place
from tests.support.kubernetes.role import LEASED_CLUSTERS, PROXY, role_rules
from tests.support.kubernetes.world import World

from ..lake import Lake
from ..rest import AirflowApi, Run
from ..waiting import wait_for

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.thorough("a shared cluster through Airflow; chaos/kubernetes has shared ones always"),
]

ROWS = 24
LEASE = 600.0


@pytest.fixture
def kubernetes(place: Place) -> World:
    world = place.stand_in
    rules = role_rules(PROXY, LEASED_CLUSTERS)
    world.server.access.grant("airflow", rules, namespace="default", token="a-token-of-airflow")
    return world


@pytest.fixture
def conf(api: AirflowApi, lake: Lake, tmp_path: Path) -> dict[str, Any]:
    """A run's params."""
    lake.connect(api, "lake")
    rows = [{"id": number, "text": f"word{number}"} for number in range(ROWS)]
    lake.write_rows("shared.jsonl", rows)
    return {
        "ray_version": version("ray"),
        "source": "s3://lake/shared.jsonl",
        "destination": f"s3://lake/{tmp_path.name}",
        "engine_args": {"request_log": str(tmp_path)},
    }


@pytest.mark.usefixtures("as_airflow")
def test_three_tasks_run_on_one_cluster(
    api: AirflowApi, kubernetes: World, conf: dict[str, Any], tmp_path: Path
) -> None:
    run = api.trigger("shared_cluster", **conf).wait(timeout=500)
    rows = open_dataset(run.task("embed").xcom(), aws_conn_id="lake").to_arrow().to_pylist()
    assert {row["id"]: row["judged_response"] for row in rows} == {
        number: f"Judge Say word{number}" for number in range(ROWS)
    }
    assert {len(row["embedding"]) for row in rows} == {64}
    made = opened(tmp_path)
    assert [len(engine.asked) for engine in made] == [ROWS, ROWS, ROWS]
    generating, judging, embedding = (engine.pid for engine in made)
    assert generating == judging != embedding
    assert_one_came_and_went(kubernetes, run)


def test_a_failed_task_leaves_no_cluster(api: AirflowApi, kubernetes: World, conf: dict[str, Any]) -> None:
    conf["engine_args"]["fail_pattern"] = "Say"
    run = api.trigger("shared_cluster", **conf).wait("failed", timeout=500)
    states = {task.task_id: task.state for task in run.tasks()}
    assert states == {
        "create": "success", "generate": "failed", "judge": "upstream_failed", "embed": "upstream_failed",
        "delete": "success",
    }  # fmt: skip
    assert_one_came_and_went(kubernetes, run)


def test_without_a_task_that_deletes_the_lease_ends_it(
    api: AirflowApi, kubernetes: World, conf: dict[str, Any]
) -> None:
    run = api.trigger("left_cluster", **conf).wait(timeout=500)
    kubernetes.server.clock.advance(0.9 * LEASE)
    kubernetes.settle()
    assert kubernetes.runtime.living() == 1
    kubernetes.server.clock.advance(0.7 * LEASE)
    wait_until_gone(kubernetes, run)


def opened(log: Path) -> list[Engine]:
    """What engines did for each job, in the order of the jobs."""
    return sorted(engines(log), key=lambda engine: engine.opened)


def assert_one_came_and_went(kubernetes: World, run: Run) -> None:
    """Check that the run made one cluster in all, and that nothing of it is left."""
    assert len(kubernetes.runtime.pods) == 1
    wait_until_gone(kubernetes, run)
    assert {one["kind"] for one in kubernetes.store.all()} == {"Namespace", "Event"}


def wait_until_gone(kubernetes: World, run: Run) -> None:
    """Wait for the end of a cluster's processes; Kubernetes learns of it a moment later."""
    wait_for("the processes' end", lambda: kubernetes.runtime.living() == 0, 60, run.evidence)
    kept = ("RayCluster", "Pod")
    wait_for("an empty namespace", lambda: not any(map(kubernetes.store.all, kept)), 60, run.evidence)
