# SPDX-License-Identifier: Apache-2.0
"""A task whose cluster is made for its job: from the claim to the last object that is deleted."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from airflow_provider_raybatch.contract.failures import FailureClass
from airflow_provider_raybatch.exceptions import RayBatchException
from airflow_provider_raybatch.kubernetes.cluster import KubeRayCluster
from airflow_provider_raybatch.operators.ray_batch import RayBatchInferenceOperator
from tests.support.airflow_tasks import Run
from tests.support.batches import Died, die, failing, spec_of_job
from tests.support.fake_ray import lasting
from tests.support.kubernetes.own_clusters import Batch, claims, deferral, fired, go_on, heads, objects, until
from tests.support.kubernetes.role import PROXY, role_rules
from tests.support.kubernetes.world import World


def test_blocking_batch_leaves_nothing(kubernetes: World, run: Run, own: Batch) -> None:
    result = own().execute(run.context())
    assert result["uri"] == "s3://lake/out/data/c1"
    (ray,) = heads(kubernetes)
    assert list(ray.jobs) == [result["submission_id"]]
    assert objects(kubernetes) == []


def test_gpus_have_the_operators_price(kubernetes: World, run: Run, own: Batch) -> None:
    """No connection tells what a cluster on Kubernetes costs."""
    own(gpu_hour_price={"H100": 3}, currency="EUR", max_cost=5).execute(run.context())
    spec = spec_of_job(heads(kubernetes)[0])
    assert (spec["gpu_hour_price"], spec["currency"], spec["max_cost"]) == ({"H100": 3.0}, "EUR", 5.0)


def test_deferred_batch_waits_and_follows_in_the_triggerer(kubernetes: World, run: Run, own: Batch) -> None:
    kubernetes.kuberay_down = True
    waits = deferral(own(deferrable=True), run)
    assert type(waits.trigger).__name__ == "RayClusterTrigger"
    kubernetes.kuberay_down = False
    kubernetes.runtime.script = lasting(requests=6)
    follows = deferral(own(deferrable=True), run, fired(waits))
    assert type(follows.trigger).__name__ == "RayJobTrigger"
    result = go_on(own(deferrable=True), run, fired(follows))
    assert result["rows"] == 2
    assert objects(kubernetes) == []


@pytest.mark.parametrize(("left", "waits_for"), [(None, 1800), (600, 600), (7200, 1800)])
def test_a_wait_in_a_queue_is_bounded(
    kubernetes: World, run: Run, own: Batch, left: float | None, waits_for: float
) -> None:
    made = KubeRayCluster(image="rayproject/ray:2.60.0", gpus_per_worker=0, kueue_queue="gpus")
    deadline = None if left is None else datetime.now(UTC) + timedelta(seconds=left)
    waits = deferral(own(deferrable=True, ray_cluster=made, deadline=deadline), run)
    # It counts from the RayJob's creation, which Kubernetes tells in whole seconds.
    assert waits_for - 60 < waits.trigger.cluster_wait < waits_for + 1
    assert waits.timeout.total_seconds() > waits.trigger.cluster_wait


def test_the_token_is_in_nothing_but_the_triggers_arguments(
    kubernetes: World, run: Run, own: Batch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    kubernetes.runtime.script = lasting(requests=6)
    follows = deferral(own(deferrable=True), run, fired(deferral(own(deferrable=True), run)))
    token = follows.trigger.serialize()[1]["ray_cluster"]["token"]
    assert token == heads(kubernetes)[0].token
    resumed = fired(follows)
    result = go_on(own(deferrable=True), run, resumed)
    told = json.dumps(
        [result, resumed[1], run.xcoms, run.store.values, run.outlet_events.__dict__], default=str
    )
    assert token not in told + caplog.text


@pytest.mark.parametrize(
    ("verb", "resource"),
    [("patch", "rayjobs"), ("create", "secrets"), ("list", "pods"), ("create", "services/proxy")],
)
def test_a_missing_right_is_said_and_leaves_nothing(
    kubernetes: World, run: Run, own: Batch, verb: str, resource: str
) -> None:
    rules = [
        {**rule, "verbs": [one for one in rule["verbs"] if one != verb]}
        if rule["resources"] == [resource] else rule
        for rule in role_rules(PROXY)
    ]  # fmt: skip
    kubernetes.server.access.grant("airflow", rules, namespace="default", token="of-airflow")
    with pytest.raises(RayBatchException, match=rf"{verb} .*docs/kubernetes_role\.yaml") as caught:
        own().execute(run.context())
    assert caught.value.failure_class is FailureClass.USER_ERROR
    kubernetes.settle()  # a RayJob without its Secret is deleted without a wait
    assert objects(kubernetes) == []


@pytest.mark.parametrize("step", ["_follow", "_end"])
def test_a_retry_takes_the_cluster_of_a_dead_worker(
    kubernetes: World, run: Run, own: Batch, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    kubernetes.runtime.script = lasting(requests=6)
    with monkeypatch.context() as patched:
        patched.setattr(RayBatchInferenceOperator, step, die)
        with pytest.raises(Died):
            own().execute(run.context())
    run.try_number += 1
    own().execute(run.context())
    assert len(claims(kubernetes)) == 1
    assert len(heads(kubernetes)[0].jobs) == 1
    assert objects(kubernetes) == []


def test_a_finished_run_needs_no_cluster(kubernetes: World, run: Run, own: Batch) -> None:
    first = own().execute(run.context())
    run.try_number += 1
    assert own().execute(run.context()) == first
    assert len(claims(kubernetes)) == 1


def test_without_a_record_the_cluster_stays_for_the_retry(kubernetes: World, run: Run, own: Batch) -> None:
    operator = own()
    hand_over = operator.hand_over

    def breaking(*given: Any) -> Any:
        run.store.broken = True
        return hand_over(*given)

    operator.hand_over = breaking
    first = operator.execute(run.context())
    assert [one.split()[0] for one in objects(kubernetes)] == ["RayJob", "RayCluster", "Secret", "Pod"]
    run.store.broken = False
    run.try_number += 1
    assert own().execute(run.context())["submission_id"] == first["submission_id"]
    assert objects(kubernetes) == []


def test_a_clear_releases_the_cluster_of_the_run_before(kubernetes: World, run: Run, own: Batch) -> None:
    kubernetes.runtime.script = lasting(600)
    deferral(own(deferrable=True), run, fired(deferral(own(deferrable=True), run)))
    before = heads(kubernetes)[0]
    kubernetes.runtime.script = lasting(0)
    run.clear()
    own().execute(run.context())
    assert not before.active
    assert before.count("POST", f"/api/jobs/{next(iter(before.jobs))}/stop")
    assert objects(kubernetes) == []


def test_a_job_that_fails_leaves_nothing(kubernetes: World, run: Run, own: Batch) -> None:
    kubernetes.runtime.script = failing(FailureClass.USER_ERROR, "The prompt is wrong.")
    with pytest.raises(RayBatchException, match="The prompt is wrong"):
        own().execute(run.context())
    assert objects(kubernetes) == []


@pytest.mark.parametrize("failure_class", [FailureClass.STALLED, FailureClass.UNSCHEDULABLE])
def test_a_quota_that_forbids_workers_is_in_the_last_sentence(
    kubernetes: World, run: Run, own: Batch, failure_class: FailureClass
) -> None:
    """The driver knows of no quota, and asks for nodes."""
    kubernetes.server.access.quotas["default", "count/pods"] = 1
    told = "cluster_wait: 900 s are over; add nodes."

    def refused() -> bool:
        (cluster,) = kubernetes.store.all("RayCluster")
        return "ReplicaFailure" in {one["type"] for one in cluster["status"]["conditions"]}

    def script(ray: Any, body: Any) -> Any:
        (cluster,) = kubernetes.store.all("RayCluster")
        cluster["spec"]["workerGroupSpecs"][0]["replicas"] = 1
        kubernetes.store.replace(cluster)
        until(refused)
        return failing(failure_class, told)(ray, body)

    kubernetes.runtime.script = script
    growing = KubeRayCluster(image="rayproject/ray:2.60.0", gpus_per_worker=0, workers=(0, 2))
    with pytest.raises(RayBatchException, match=r"add nodes\. RayCluster .* exceeded quota"):
        own(ray_cluster=growing).execute(run.context())


def test_a_wrong_argument_creates_nothing(kubernetes: World, run: Run, own: Batch) -> None:
    operator = own()
    operator.destination = "ftp://lake/out"
    with pytest.raises(RayBatchException, match="destination"):
        operator.execute(run.context())
    assert not claims(kubernetes)


@pytest.mark.parametrize("deferrable", [False, True])
def test_what_can_not_come_fails_at_once(kubernetes: World, run: Run, own: Batch, deferrable: bool) -> None:
    kubernetes.kubelet.bad_images["rayproject/ray:2.60.0"] = "not found"
    operator = own(deferrable=deferrable)
    resumed = fired(deferral(operator, run)) if deferrable else None
    with pytest.raises(RayBatchException, match="image") as caught:
        go_on(operator, run, resumed)
    assert caught.value.failure_class is FailureClass.USER_ERROR
    assert objects(kubernetes) == []


def test_cluster_wait_bounds_the_wait(kubernetes: World, run: Run, own: Batch) -> None:
    kubernetes.kuberay_down = True
    with pytest.raises(RayBatchException, match=r"cluster_wait: .* not ready within"):
        own(cluster_wait=0.1).execute(run.context())
    kubernetes.kuberay_down = False
    assert objects(kubernetes) == []


def test_a_role_that_is_taken_away_ends_no_job(kubernetes: World, run: Run, own: Batch) -> None:
    def narrow() -> None:
        rules = [rule for rule in role_rules(PROXY) if "rayjobs" not in rule["resources"]]
        kubernetes.server.access.grant("airflow", rules, namespace="default", token="of-airflow")

    def script(ray: Any, body: Any) -> Any:
        ray.at_poll(1, narrow)
        return lasting(requests=6)(ray, body)

    kubernetes.runtime.script = script
    assert own().execute(run.context())["rows"] == 2
