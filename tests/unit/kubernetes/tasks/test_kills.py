# SPDX-License-Identifier: Apache-2.0
"""A task with a cluster of its own that a user ends, wherever it is: the job stops, then the cluster goes."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

from airflow_provider_raybatch.contract.failures import FailureClass
from airflow_provider_raybatch.exceptions import RayBatchException
from airflow_provider_raybatch.operators.ray_job import RayJobOperator
from tests.support.airflow_tasks import Run
from tests.support.fake_ray import Script, lasting
from tests.support.kubernetes.own_clusters import Batch, claims, deferral, fired, heads, made_trigger, objects
from tests.support.kubernetes.world import World

POINTS = ["at the first poll", "while it is posted", "before it is made", "while it is waited for"]


@pytest.mark.parametrize("point", POINTS)
def test_killed_worker_leaves_nothing(kubernetes: World, run: Run, own: Batch, point: str) -> None:
    operator = own()

    def script(ray: Any, body: Any) -> Script:
        if point == "at the first poll":
            ray.at_poll(1, operator.on_kill)
        return lasting(600)(ray, body)

    kubernetes.runtime.script = script
    if point == "before it is made":
        operator.on_kill()
    if point == "while it is posted":
        plan = operator.plan

        def planned(run: Any) -> Any:
            made = plan(run)
            build = made.build

            async def building(client: Any, submission_id: str) -> Any:
                await asyncio.to_thread(operator.on_kill)
                return await build(client, submission_id)

            object.__setattr__(made, "build", building)
            return made

        operator.plan = planned
    if point == "while it is waited for":
        kubernetes.runtime.slow.add("headgroup")
        kill = threading.Thread(target=operator.on_kill)
        kubernetes.server.faults.stage(verb="list", kind="Pod", call=lambda _: kill.start())
    with pytest.raises(RayBatchException):
        operator.execute(run.context())
    assert objects(kubernetes) == []
    assert not any(ray.active for ray in heads(kubernetes))


def test_the_order_of_a_kill(kubernetes: World, run: Run, own: Batch) -> None:
    """What follows the order to stop and the bound goes on without a process that has five seconds."""
    operator = own()
    order: list[str] = []

    def script(ray: Any, body: Any) -> Script:
        def bounded(request: Any) -> None:
            order.append(request.verb)
            kubernetes.kuberay_down = False

        def kill() -> None:
            ray.stage("POST", "/api/jobs/", lambda answer: (order.append("stop"), answer())[1])
            faults.stage(verb="patch", kind="RayJob", call=bounded)
            faults.stage(verb="delete", kind="RayJob", call=lambda request: order.append(request.verb))
            operator.on_kill()

        kubernetes.kuberay_down = True  # else it may see the stopped job first, and needs no bound
        ray.at_poll(1, kill)
        return lasting(600)(ray, body)

    faults = kubernetes.server.faults
    kubernetes.runtime.script = script
    with pytest.raises(RayBatchException):
        operator.execute(run.context())
    assert order == ["stop", "patch", "delete"]


@pytest.mark.parametrize("state", ["success", "failed", None])
@pytest.mark.parametrize("waits", [False, True], ids=["following", "waiting"])
def test_marked_task_leaves_nothing(
    kubernetes: World, run: Run, own: Batch, monkeypatch: pytest.MonkeyPatch, state: str | None, waits: bool
) -> None:
    kubernetes.runtime.script = lasting(600)
    kubernetes.kuberay_down = waits
    deferred = deferral(own(deferrable=True), run)
    if not waits:
        deferred = deferral(own(deferrable=True), run, fired(deferred))
    kubernetes.kuberay_down = False
    asked = {"r": {"t": state}} if state else {}
    monkeypatch.setattr(RuntimeTaskInstance, "get_task_states", lambda **given: asked)
    trigger = made_trigger(deferred, run)
    asyncio.run(trigger.on_kill())
    assert objects(kubernetes) == []
    assert not any(ray.active for ray in heads(kubernetes))


@pytest.mark.parametrize("waits", [False, True], ids=["following", "waiting"])
def test_a_trigger_that_another_triggerer_has_touches_nothing(
    kubernetes: World, run: Run, own: Batch, monkeypatch: pytest.MonkeyPatch, waits: bool
) -> None:
    kubernetes.runtime.script = lasting(600)
    deferred = deferral(own(deferrable=True), run)
    if not waits:
        deferred = deferral(own(deferrable=True), run, fired(deferred))
    monkeypatch.setattr(RuntimeTaskInstance, "get_task_states", lambda **given: {"r": {"t": "deferred"}})
    before = len(objects(kubernetes))
    asyncio.run(made_trigger(deferred, run).on_kill())
    assert len(objects(kubernetes)) >= before > 0


def test_a_head_that_restarts_loses_the_job(kubernetes: World, run: Run, own: Batch) -> None:
    def script(ray: Any, body: Any) -> Script:
        def kill() -> None:
            ray.down = True
            (pod,) = kubernetes.store.all("Pod")
            kubernetes.disasters.oom_kill(pod["metadata"]["name"])

        ray.at_poll(1, kill)
        return lasting(600)(ray, body)

    kubernetes.runtime.script = script
    with pytest.raises(RayBatchException, match="its head restarted") as caught:
        own().execute(run.context())
    assert caught.value.failure_class is FailureClass.CLUSTER_LOST
    assert objects(kubernetes) == []


@pytest.mark.timeout(60)
def test_a_head_that_never_comes_back_holds_up_no_release(kubernetes: World, run: Run, own: Batch) -> None:
    def script(ray: Any, body: Any) -> Script:
        def kill() -> None:
            ray.down = True
            kubernetes.scheduler.nodes.clear()
            (pod,) = kubernetes.store.all("Pod")
            kubernetes.disasters.preempt(pod["metadata"]["name"])

        ray.at_poll(1, kill)
        return lasting(600)(ray, body)

    kubernetes.runtime.script = script
    with pytest.raises(RayBatchException, match="head pod") as caught:
        own().execute(run.context())
    assert caught.value.failure_class is FailureClass.NODE_LOST
    assert objects(kubernetes) == []


def test_changed_arguments_replace_the_cluster(kubernetes: World, run: Run, own: Batch) -> None:
    kubernetes.runtime.script = lasting(600)
    deferral(own(deferrable=True), run, fired(deferral(own(deferrable=True), run)))
    kubernetes.runtime.script = lasting(0)
    run.try_number += 1
    own(prompt="Another {row.x}").execute(run.context())
    assert len(claims(kubernetes)) == 2
    assert objects(kubernetes) == []


def test_stale_state_fail_leaves_the_cluster(kubernetes: World, run: Run, own: Batch) -> None:
    kubernetes.runtime.script = lasting(600)
    deferral(own(deferrable=True), run, fired(deferral(own(deferrable=True), run)))
    run.try_number += 1
    with pytest.raises(RayBatchException, match="on_stale_state"):
        own(prompt="Another {row.x}", on_stale_state="fail").execute(run.context())
    assert heads(kubernetes)[0].active


def test_a_job_that_has_succeeded_is_not_run_twice(kubernetes: World, run: Run, cluster: Any) -> None:
    def operator() -> RayJobOperator:
        return RayJobOperator(task_id="t", entrypoint="true", ray_cluster=cluster, poll_interval=0.05)

    first = operator()
    first.hand_over = lambda *given: (_ for _ in ()).throw(KeyboardInterrupt)  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        first.execute(run.context())
    kubernetes.settle()
    run.try_number += 1
    assert operator().execute(run.context())["status"] == "SUCCEEDED"
    assert sum(len(ray.jobs) for ray in heads(kubernetes)) == 1
    assert objects(kubernetes) == []
