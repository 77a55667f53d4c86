# SPDX-License-Identifier: Apache-2.0
"""The loop around the judgement, on the stand-in for a Kubernetes: what is asked, told, and how it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from airflow_provider_raybatch.cluster.jobs_api.errors import ClusterUnreachableError
from airflow_provider_raybatch.contract.failures import FailureClass
from airflow_provider_raybatch.kubernetes.api.errors import ForbiddenError
from airflow_provider_raybatch.kubernetes.kuberay.rayjob import ClusterClaim, RayJobState
from airflow_provider_raybatch.kubernetes.kuberay.waiting import (
    ClusterNotReadyError,
    read_pod_exits,
    wait_for_cluster,
)
from tests.support.kubernetes.clock import Clock
from tests.support.kubernetes.memory import MemoryKubernetes, set_status
from tests.support.kubernetes.seen import CLUSTER, HEAD, JOB, NO_GPU, START, event, pod, unschedulable
from tests.support.kubernetes.server import ApiServer

RIGHTS = [
    {"apiGroups": ["ray.io"], "resources": ["rayjobs", "rayclusters"], "verbs": ["get", "list"]},
    {"apiGroups": [""], "resources": ["pods", "events"], "verbs": ["list"]},
]


class Scene:
    """A RayJob on the stand-in, and what a controller does to it while the loop sleeps.

    :param steps: each is done in one sleep.
    """

    def __init__(self, *steps: Callable[[Scene], object], rights: Any = None, queue: str = "") -> None:
        self.server = ApiServer(kuberay="1.7.0", clock=Clock(start=START))
        user = None if rights is None else self.server.access.grant("airflow", rights, namespace="default")
        self.api = MemoryKubernetes(self.server, user=user)
        self.admin = MemoryKubernetes(self.server)
        self.steps = list(steps)
        self.lines: list[str] = []
        self.slept = 0.0
        self.labels = {"kueue.x-k8s.io/queue-name": queue} if queue else {}

    async def sleep(self, seconds: float) -> None:
        self.slept += seconds
        self.server.clock.advance(seconds)
        if self.steps:
            self.steps.pop(0)(self)

    async def wait(self, cluster_wait: float = 1800.0, **more: Any) -> RayJobState:
        made = await self.admin.create({
            "apiVersion": "ray.io/v1",
            "kind": "RayJob",
            "metadata": {"name": JOB, "labels": self.labels},
            "spec": {
                "submissionMode": "InteractiveMode",
                "rayClusterSpec": {
                    "headGroupSpec": {
                        "template": {"spec": {"containers": [{"name": "ray-head", "image": "x"}]}}
                    },
                },
            },
        })
        claim = ClusterClaim("default", JOB, made["metadata"]["uid"], 0, "secret")
        return await wait_for_cluster(
            self.api,
            claim,
            cluster_wait=cluster_wait,
            show=self.lines.append,
            sleep=self.sleep,
            clock=self.server.clock.now,
            **more,
        )

    def run(self, **more: Any) -> RayJobState:
        return asyncio.run(self.wait(**more))


def initialize(scene: Scene) -> None:
    set_status(
        scene.server, "RayJob", JOB, {"jobDeploymentStatus": "Initializing", "rayClusterName": CLUSTER}
    )
    keep(
        scene,
        {
            "apiVersion": "ray.io/v1",
            "kind": "RayCluster",
            "metadata": {"name": CLUSTER},
            "spec": {
                "headGroupSpec": {"template": {"spec": {"containers": [{"name": "ray-head", "image": "x"}]}}}
            },
        },
    )


def keep(scene: Scene, manifest: dict[str, Any]) -> None:
    """Store an object as its controller does, over an earlier one of its name."""
    kind, name = manifest["kind"], manifest["metadata"]["name"]
    status = manifest.get("status")
    manifest = {**manifest, "metadata": {**manifest["metadata"], "namespace": "default"}}
    manifest["metadata"].pop("uid", None)
    if scene.server.store.find(kind, "default", name) is None:
        scene.server.store.create(manifest)
    if status:
        set_status(scene.server, kind, name, status)


def ready(scene: Scene) -> None:
    set_status(scene.server, "RayJob", JOB, {"jobDeploymentStatus": "Waiting", "dashboardURL": "x:8265"})


def test_way_of_a_cluster() -> None:
    scale_up = event("TriggeredScaleUp", "pod triggered scale-up: [{gpu-pool 0->1 (max: 4)}]")
    scene = Scene(
        initialize,
        lambda scene: keep(scene, unschedulable(NO_GPU)),
        lambda scene: keep(scene, scale_up),
        lambda scene: keep(scene, pod(phase="Running", node="n1", ready=True)),
        ready,
    )
    job = scene.run()
    assert job.deployment_status == "Waiting"
    assert [line.partition(": ")[0] for line in scene.lines] == [
        f"RayJob {JOB}",
        f"RayCluster {CLUSTER}",
        f"head pod {HEAD}",
        f"head pod {HEAD}",
        f"head pod {HEAD}",
    ]
    assert scene.lines[3].endswith("; TriggeredScaleUp: pod triggered scale-up: [{gpu-pool 0->1 (max: 4)}].")
    assert scene.lines[4].endswith(": is ready.")


def test_one_look_asks_little() -> None:
    scene = Scene(initialize, lambda scene: keep(scene, unschedulable(NO_GPU)), lambda _: None, ready)
    scene.run()
    of_events = [one for one in scene.server.faults.requests if one.kind == "Event"]
    assert len(of_events) <= 8
    assert len(scene.server.faults.requests) <= 30


def test_cluster_wait_ends_with_the_latest_reason() -> None:
    scene = Scene(initialize, lambda scene: keep(scene, unschedulable(NO_GPU)))
    with pytest.raises(ClusterNotReadyError) as caught:
        scene.run(cluster_wait=300.0)
    assert caught.value.failure_class is FailureClass.STALLED
    assert str(caught.value).startswith(
        f"cluster_wait: the cluster was not ready within 5 min 0 s; head pod {HEAD}: waits for a node: "
        "0/5 nodes are available"
    )
    assert str(caught.value).endswith(
        "for incoming pod; add nodes, ask for less, or correct node_selector and tolerations."
    )
    assert 299 <= scene.slept <= 315


def test_clock_of_this_machine_does_not_count() -> None:
    """The server's clock is years away; only its differences are used."""
    scene = Scene()
    with pytest.raises(ClusterNotReadyError, match="within 1 min 0 s"):
        scene.run(cluster_wait=60.0)
    assert 59 <= scene.slept <= 75


def test_cluster_that_comes_while_kubernetes_is_down() -> None:
    scene = Scene(
        initialize,
        lambda scene: setattr(scene.server.faults, "down", True),
        lambda _: None,
        lambda scene: (setattr(scene.server.faults, "down", False), ready(scene)),
    )
    assert scene.run().deployment_status == "Waiting"
    assert scene.lines.count("Kubernetes' API server closed the connection") == 1


def test_dashboard_that_answers_late() -> None:
    answers = iter([ClusterUnreachableError("The dashboard does not answer."), "the dashboard starts", None])

    async def answer(_: RayJobState) -> str | None:
        answered = next(answers)
        if isinstance(answered, ClusterUnreachableError):
            raise answered
        return answered

    scene = Scene(initialize, ready)
    scene.run(answers=answer)
    assert "The dashboard does not answer." in scene.lines
    assert scene.lines[-1] == "the dashboard starts"


def test_failure_of_a_pod_ends_the_wait() -> None:
    refused = pod(node="n1", waiting=("InvalidImageName", "bad"))
    scene = Scene(initialize, lambda scene: keep(scene, refused))
    with pytest.raises(ClusterNotReadyError, match="InvalidImageName: bad; correct image") as caught:
        scene.run()
    assert caught.value.failure_class is FailureClass.USER_ERROR
    assert scene.slept < 15


def test_refused_request_ends_the_wait() -> None:
    rights = [{**rule, "resources": [*{*rule["resources"]} - {"pods"}]} for rule in RIGHTS]
    scene = Scene(initialize, rights=rights)
    with pytest.raises(ForbiddenError, match=r"cannot list resource \"pods\""):
        scene.run()
    assert scene.slept < 15


def test_rayjob_of_another_claim() -> None:
    async def wait() -> None:
        claim = ClusterClaim("default", JOB, "other-uid", 0, "secret")
        await wait_for_cluster(scene.api, claim, cluster_wait=60, show=scene.lines.append, sleep=scene.sleep)

    scene = Scene()
    with pytest.raises(ClusterNotReadyError, match="was deleted"):
        asyncio.run(wait())


def suspend(scene: Scene) -> None:
    set_status(scene.server, "RayJob", JOB, {"jobDeploymentStatus": "Suspended"})


def test_queue_is_told_without_a_right_to_workloads() -> None:
    scene = Scene(suspend, ready, rights=RIGHTS, queue="gpus")
    scene.run()
    assert any("its Workload, which says why, can't be read" in line for line in scene.lines)


def test_time_in_a_queue_is_bounded_too() -> None:
    scene = Scene(suspend, queue="gpus")
    with pytest.raises(ClusterNotReadyError, match="cluster_wait: the cluster was not ready within 10 min"):
        scene.run(cluster_wait=600.0)
    assert 600 <= round(scene.slept, 3) <= 700  # a sum of many pauses


def test_exits_of_a_clusters_pods() -> None:
    scene = Scene()
    dead = pod(phase="Failed", node="n1", ended={"exitCode": 137, "reason": "OOMKilled"})
    keep(scene, dead)
    keep(scene, event("CreatedHeadPod", "Created head Pod ml/gone-head-1", CLUSTER, "RayCluster"))
    keep(scene, event("Preempted", "Preempted by pod 6d1c on node n1", "gone-head-1"))
    found = asyncio.run(read_pod_exits(scene.api, CLUSTER))
    assert found.cause is not None
    assert found.cause.failure_class is FailureClass.OUT_OF_MEMORY
    assert [line.partition(":")[0] for line in found.lines] == ["head pod gone-head-1", f"head pod {HEAD}"]
