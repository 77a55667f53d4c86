# SPDX-License-Identifier: Apache-2.0
"""Clusters that went while their task looked away, and what an attempt left that died at its end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from airflow_provider_raybatch.contract.failures import FailureClass
from airflow_provider_raybatch.exceptions import RayBatchException
from airflow_provider_raybatch.operators.ray_batch import RayBatchInferenceOperator
from airflow_provider_raybatch.operators.ray_job import RayJobOperator
from tests.support.airflow_tasks import Run
from tests.support.batches import Died, die
from tests.support.fake_ray import lasting
from tests.support.kubernetes.own_clusters import Batch, heads, objects, until
from tests.support.kubernetes.world import World


def only(kubernetes: World, kind: str) -> Any:
    (found,) = kubernetes.store.all(kind)  # type: ignore[arg-type]
    return found


def at_the_first_poll(kubernetes: World, what: Callable[[], object]) -> None:
    def script(ray: Any, body: Any) -> Any:
        ray.at_poll(1, what)
        return lasting(600)(ray, body)

    kubernetes.runtime.script = script


def break_image(kubernetes: World) -> None:
    kubernetes.runtime.broken["rayproject/ray:2.60.0"] = 127


def refuse_pods(kubernetes: World) -> None:
    said = "Node didn't have enough resource: cpu, requested: 2000, used: 0, capacity: 1000"
    kubernetes.kubelet.refusals["node-1"] = ("OutOfcpu", said)


@pytest.mark.parametrize(
    ("breaks", "failure_class", "why"),
    [
        (break_image, FailureClass.USER_ERROR, "xit ?[Cc]ode:? ?127.*; use an image that has Ray"),
        (refuse_pods, FailureClass.STALLED, "cluster_wait: .*OutOfcpu: Node didn't have enough resource"),
    ],
)
def test_head_that_can_not_start_ends_the_wait(
    kubernetes: World, run: Run, own: Batch, breaks: Any, failure_class: FailureClass, why: str
) -> None:
    """KubeRay replaces it for ever, so that a young pod stands there at each look."""
    breaks(kubernetes)
    with pytest.raises(RayBatchException, match=why) as caught:
        own(cluster_wait=10).execute(run.context())
    assert caught.value.failure_class is failure_class
    assert objects(kubernetes) == []


def test_retry_releases_what_a_dead_attempt_left(
    kubernetes: World, run: Run, own: Batch, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(RayBatchInferenceOperator, "_release", die)
        with pytest.raises(Died):
            own().execute(run.context())
    run.try_number += 1
    own().execute(run.context())
    assert objects(kubernetes) == []


def test_replaced_cluster_ends_the_attempt_at_once(
    kubernetes: World, run: Run, own: Batch, capsys: pytest.CaptureFixture[str]
) -> None:
    def evict() -> None:
        job = only(kubernetes, "RayJob")
        before = job["status"]["rayClusterName"]
        for suspend in (True, False):
            change = {"spec": {"suspend": suspend}}
            kubernetes.server.patch(
                kubernetes.server.admin, "RayJob", "default", job["metadata"]["name"], change
            )
            until(lambda: only(kubernetes, "RayJob")["status"].get("rayClusterName") != before)

    at_the_first_poll(kubernetes, evict)
    with pytest.raises(RayBatchException, match="Kueue has taken the quota of RayJob") as caught:
        own().execute(run.context())
    assert caught.value.failure_class is FailureClass.NODE_LOST
    assert "Waiting up to" not in capsys.readouterr().out
    assert objects(kubernetes) == []


def test_unread_result_of_a_cluster_that_went(kubernetes: World, run: Run, own: Batch) -> None:
    def end() -> None:
        (ray,) = heads(kubernetes)
        ray.end_jobs()
        until(lambda: only(kubernetes, "RayJob")["status"]["jobDeploymentStatus"] == "Complete")
        name = only(kubernetes, "RayCluster")["metadata"]["name"]
        kubernetes.server.delete(kubernetes.server.admin, "RayCluster", "default", name)
        until(lambda: not kubernetes.store.all("Pod"))

    at_the_first_poll(kubernetes, end)
    with pytest.raises(RayBatchException, match="before the result of its job was read") as caught:
        own().execute(run.context())
    assert caught.value.failure_class is FailureClass.CLUSTER_LOST
    assert objects(kubernetes) == []


def test_cluster_that_is_gone_is_not_asked_to_stop(kubernetes: World, run: Run, own: Batch) -> None:
    operator = own()
    kubernetes.runtime.script = lasting(600)
    kubernetes.server.faults.stage(verb="patch", kind="RayJob", call=lambda _: operator.on_kill())
    with pytest.raises(RayBatchException):
        operator.execute(run.context())
    asked = [one for one in kubernetes.server.faults.requests if one.subresource.endswith("/stop")]
    assert len(asked) < 30


@pytest.mark.parametrize("kind", ["batch", "job"])
def test_job_that_ends_while_a_retry_takes_it_counts(
    kubernetes: World, run: Run, own: Batch, cluster: Any, kind: str
) -> None:
    def operator() -> Any:
        if kind == "batch":
            return own()
        return RayJobOperator(task_id="t", entrypoint="true", ray_cluster=cluster, poll_interval=0.05)

    def end(request: Any) -> None:
        heads(kubernetes)[0].end_jobs()
        until(lambda: only(kubernetes, "RayJob")["status"]["jobDeploymentStatus"] == "Complete")

    kubernetes.runtime.script = lasting(600)
    first = operator()
    first._follow = die
    with pytest.raises(Died):
        first.execute(run.context())
    run.try_number += 1
    kubernetes.server.faults.stage(verb="get", kind="RayCluster", call=end)
    operator().execute(run.context())
    assert sum(len(ray.jobs) for ray in heads(kubernetes)) == 1
    assert objects(kubernetes) == []
