# SPDX-License-Identifier: Apache-2.0
"""No cluster stays without an attempt that takes it; no job ends since its follower was away for a while."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from airflow.sdk.exceptions import TaskDeferred

from airflow_provider_raybatch.contract.failures import FailureClass
from airflow_provider_raybatch.exceptions import RayBatchException
from airflow_provider_raybatch.kubernetes.api.errors import KubernetesUnreachableError
from airflow_provider_raybatch.kubernetes.cluster import KubeRayCluster
from airflow_provider_raybatch.kubernetes.clusters.per_run import PerRunClusters
from airflow_provider_raybatch.kubernetes.kuberay import submission
from airflow_provider_raybatch.kubernetes.kuberay.lifecycle import extension
from airflow_provider_raybatch.kubernetes.kuberay.rayjob import rayjob_state
from airflow_provider_raybatch.operators import own_clusters
from airflow_provider_raybatch.operators.ray_batch import RayBatchInferenceOperator
from airflow_provider_raybatch.operators.ray_job import RayJobOperator
from tests.support.airflow_tasks import Run
from tests.support.batches import Died, die, failing, left
from tests.support.fake_ray import lasting
from tests.support.kubernetes.own_clusters import GONE, Batch, claims, deferral, fired, go_on, heads, objects
from tests.support.kubernetes.world import World


def followed(run: Run, own: Batch, **arguments: Any) -> TaskDeferred:
    """Run an attempt until its trigger follows the job."""
    return deferral(own(deferrable=True, **arguments), run, fired(deferral(own(deferrable=True), run)))


def only_rayjob(kubernetes: World) -> Any:
    (found,) = kubernetes.store.all("RayJob")
    return rayjob_state(found)


@pytest.mark.parametrize("orphan_timeout", [600, 6 * 3600, 24 * 3600])
def test_no_deadline_comes_before_orphan_timeout(
    kubernetes: World, run: Run, own: Batch, orphan_timeout: int
) -> None:
    kubernetes.runtime.script = lasting(600)
    given = {"deferrable": True, "orphan_timeout": orphan_timeout}
    waits = deferral(own(**given), run)
    window = deferral(own(**given), run, fired(waits)).trigger.ray_cluster["window"]
    started = rayjob = only_rayjob(kubernetes)
    late = started.started + rayjob.active_deadline - orphan_timeout - 60
    assert "activeDeadlineSeconds" in extension(replace(rayjob, deployment_status="Running"), late, window)


def test_kill_before_the_job_leaves_the_first_deadline(
    kubernetes: World, run: Run, own: Batch, monkeypatch: pytest.MonkeyPatch
) -> None:
    kubernetes.runtime.script = lasting(600)
    given = {"deferrable": True, "orphan_timeout": 6 * 3600}
    resumed = fired(deferral(own(**given), run))
    first = only_rayjob(kubernetes).pre_running_deadline
    monkeypatch.setattr(submission, "post", die)
    with pytest.raises(Died):
        deferral(own(**given), run, resumed)
    left = only_rayjob(kubernetes)
    assert (left.deployment_status, left.pre_running_deadline) == ("Waiting", first)


@pytest.mark.parametrize("gone", GONE.values(), ids=GONE)
def test_lost_trigger_of_a_wait_leaves_it_to_the_worker(
    kubernetes: World, run: Run, own: Batch, gone: tuple[str, Any]
) -> None:
    kubernetes.kuberay_down = True
    deferral(own(deferrable=True), run)
    kubernetes.kuberay_down = False
    kubernetes.runtime.script = lasting(requests=6)
    follows = deferral(own(deferrable=True), run, gone)
    assert type(follows.trigger).__name__ == "RayJobTrigger"
    assert go_on(own(deferrable=True), run, fired(follows))["rows"] == 2
    assert len(claims(kubernetes)) == 1
    assert objects(kubernetes) == []


def test_lost_trigger_and_no_cluster_in_time_leaves_nothing(kubernetes: World, run: Run, own: Batch) -> None:
    kubernetes.kuberay_down = True
    deferral(own(deferrable=True, cluster_wait=0.1), run)
    with pytest.raises(RayBatchException, match="cluster_wait") as caught:
        go_on(own(deferrable=True, cluster_wait=0.1), run, GONE["timeout"])
    assert caught.value.failure_class is FailureClass.STALLED
    kubernetes.kuberay_down = False
    assert objects(kubernetes) == []


def test_argument_that_breaks_later_leaves_no_cluster(kubernetes: World, run: Run, own: Batch) -> None:
    resumed = fired(deferral(own(deferrable=True), run))
    with pytest.raises(RayBatchException, match="destination"):
        go_on(left(own(deferrable=True), destination="ftp://lake/out"), run, resumed)
    assert objects(kubernetes) == []


@pytest.mark.parametrize("last", [False, True])
def test_unexpected_error_leaves_the_cluster_to_a_retry(
    kubernetes: World, run: Run, own: Batch, monkeypatch: pytest.MonkeyPatch, last: bool
) -> None:
    if last:
        run.try_number = run.max_tries + 1
    monkeypatch.setattr(submission, "post", lambda *given: (_ for _ in ()).throw(OSError("disk")))
    with pytest.raises(OSError, match="disk"):
        own().execute(run.context())
    assert (objects(kubernetes) == []) is last


@pytest.mark.parametrize("last", [False, True])
def test_failing_follower_leaves_the_cluster_to_a_retry(
    kubernetes: World, run: Run, own: Batch, monkeypatch: pytest.MonkeyPatch, last: bool
) -> None:
    kubernetes.runtime.script = lasting(600)
    if last:
        run.try_number = run.max_tries + 1
    error = KubernetesUnreachableError("It is silent.")
    monkeypatch.setattr(RayBatchInferenceOperator, "_follow", lambda *given: (_ for _ in ()).throw(error))
    with pytest.raises(RayBatchException, match="silent"):
        own().execute(run.context())
    assert (objects(kubernetes) == []) is last
    assert any(ray.active for ray in heads(kubernetes)) is not last


def test_late_attempt_leaves_the_cluster_of_the_next_one(
    kubernetes: World, run: Run, own: Batch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A frozen worker wakes up after its successor has made the run's next cluster."""
    kubernetes.runtime.script = failing(FailureClass.INTERNAL, seconds=600)
    late = followed(run, own)
    kubernetes.runtime.script, ended = lasting(600), heads(kubernetes)[0]
    release = own_clusters.release

    def slow_release(*given: Any, **more: Any) -> None:
        release(*given, **more)
        run.try_number += 1
        with monkeypatch.context() as patched:
            patched.setattr(RayBatchInferenceOperator, "_follow", die)
            with pytest.raises(Died):
                own().execute(run.context())
        assert heads(kubernetes)[-1].active
        release(*given, **more)

    monkeypatch.setattr("airflow_provider_raybatch.operators.base.release", slow_release)
    ended.end_jobs()
    with pytest.raises(RayBatchException):
        go_on(own(deferrable=True), run, fired(late))
    assert heads(kubernetes)[-1].active
    assert len(kubernetes.store.all("RayJob")) == 1


def test_job_that_nobody_follows_is_attached_or_ended(
    kubernetes: World, run: Run, cluster: KubeRayCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """KubeRay ends a cluster whose job it does not know, so it has to know it."""

    async def away(*given: Any) -> None:
        raise KubernetesUnreachableError("The API server is away.")

    def operator() -> RayJobOperator:
        return RayJobOperator(task_id="t", entrypoint="true", ray_cluster=cluster, wait_for_completion=False)

    with monkeypatch.context() as patched:
        patched.setattr(submission, "attach", away)
        with pytest.raises(RayBatchException, match="away"):
            operator().execute(run.context())
    run.try_number += 1
    result = operator().execute(run.context())
    assert only_rayjob(kubernetes).job_id == result["submission_id"]
    assert len(claims(kubernetes)) == 1


def test_clear_frees_the_nodes_of_the_run_before_at_first(
    kubernetes: World, run: Run, own: Batch, monkeypatch: pytest.MonkeyPatch
) -> None:
    kubernetes.runtime.script = lasting(600)
    followed(run, own)
    run.clear()
    before: list[int] = []
    submit = PerRunClusters.submit

    async def submitting(place: PerRunClusters, order: Any) -> Any:
        before.append(len(kubernetes.store.all("RayJob")))
        return await submit(place, order)

    monkeypatch.setattr(PerRunClusters, "submit", submitting)
    deferral(own(deferrable=True), run)
    assert before == [0]
