# SPDX-License-Identifier: Apache-2.0
"""The example with a cluster that tasks share, as Airflow runs it, on a STAND-IN for a Kubernetes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from airflow_provider_raybatch.contract.events import Committed
from airflow_provider_raybatch.contract.failures import FailureClass
from tests.support.batches import failing
from tests.support.fake_ray import FakeRay, Script, summary
from tests.support.kubernetes.own_clusters import claims, heads, objects
from tests.support.kubernetes.shared_clusters import allow_sharing
from tests.support.kubernetes.world import World
from tests.support.programs import program


@pytest.fixture
def example(kubernetes: World, monkeypatch: pytest.MonkeyPatch) -> Any:
    allow_sharing(kubernetes)
    monkeypatch.setenv("RAYBATCH_EXAMPLE_NAMESPACE", "default")
    return program("dags_examples/shared_cluster.py", "shared_cluster_under_test").questions_on_one_cluster()


def states(run: Any) -> dict[str, str]:
    return {task.task_id: str(task.state) for task in run.get_task_instances()}


def scripted(kubernetes: World, failed: str = "") -> list[dict[str, Any]]:
    """Let each job commit a dataset, except the one that writes to `failed`; return the specs of all jobs."""
    specs = list[dict[str, Any]]()

    def script(ray: FakeRay, body: dict[str, Any]) -> Script:
        spec = ray.spec(body)
        specs.append(spec)
        if failed and failed in spec["destination"]:
            return failing(FailureClass.USER_ERROR)(ray, body)
        done = ray.line(body, Committed(summary=summary(f"{spec['destination']}/data/c1")))
        return Script(last=[done], seconds=0.0)

    kubernetes.runtime.script = script
    return specs


def test_three_jobs_run_on_one_cluster(
    kubernetes: World, example: Any, dag_test: Callable[[Any], Any]
) -> None:
    specs = scripted(kubernetes)
    run = dag_test(example)
    assert set(states(run).values()) == {"success"}
    assert len(claims(kubernetes)) == len(heads(kubernetes)) == 1
    assert objects(kubernetes) == []
    generate, judge, embed = specs
    assert judge["source"] == [f"{generate['destination']}/data/c1"]
    assert embed["source"] == [f"{judge['destination']}/data/c1"]
    assert len({spec["destination"] for spec in specs}) == 3


def test_a_failed_task_leaves_no_cluster(
    kubernetes: World, example: Any, dag_test: Callable[[Any], Any]
) -> None:
    scripted(kubernetes, failed="judged")
    assert states(dag_test(example)) == {
        "create_cluster": "success", "generate": "success", "judge": "failed", "embed": "upstream_failed",
        "delete_cluster": "success",
    }  # fmt: skip
    assert len(claims(kubernetes)) == 1
    assert objects(kubernetes) == []
