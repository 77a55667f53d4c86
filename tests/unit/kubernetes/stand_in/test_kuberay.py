# SPDX-License-Identifier: Apache-2.0
"""The stand-in for KubeRay goes through KubeRay's states, its holes included."""

from __future__ import annotations

import base64
import json
import urllib.request
from collections.abc import Iterator

import pytest

from tests.support.fake_ray import FakeRay, lasting
from tests.support.kubernetes.clock import Clock
from tests.support.kubernetes.fast_heads import FastHeads
from tests.support.kubernetes.kinds import Manifest
from tests.support.kubernetes.memory import MemoryKubernetes
from tests.support.kubernetes.nodes import Node, NodeGroup
from tests.support.kubernetes.world import World, world

GPU = "nvidia.com/gpu"


def group(**resources: str) -> Manifest:
    """Return a group's parameters and template, for pods that ask for resources."""
    container = {"name": "ray", "image": "ray:2.60", "resources": {"limits": resources}}
    return {"rayStartParams": {}, "template": {"spec": {"restartPolicy": "Never", "containers": [container]}}}


def rayjob(name: str = "job", *, workers: int = 0, queue: str = "", **spec: object) -> Manifest:
    gpus = {"groupName": "gpus", "replicas": workers, "minReplicas": workers, "maxReplicas": 4}
    cluster = {
        "rayVersion": "2.60.0",
        "authOptions": {"mode": "token", "secretName": "token"},
        "headGroupSpec": group(),
        "workerGroupSpecs": [{**gpus, **group(**{GPU: "1"})}],
    }
    body = {
        "submissionMode": "InteractiveMode",
        "shutdownAfterJobFinishes": True,
        "ttlSecondsAfterFinished": 60,
        "preRunningDeadlineSeconds": 100,
        "activeDeadlineSeconds": 50,
        "rayClusterSpec": cluster,
        **spec,
    }
    head = {"name": name, "labels": {"kueue.x-k8s.io/queue-name": queue} if queue else {}}
    return {"apiVersion": "ray.io/v1", "kind": "RayJob", "metadata": head, "spec": body}


def token() -> Manifest:
    data = {"auth_token": base64.b64encode(b"t").decode()}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "token"}, "data": data}


@pytest.fixture
def kubernetes() -> Iterator[World]:
    made = World(clock=Clock(start=1_700_000_000), runtime=FastHeads(lasting(3600)))
    yield made
    made.runtime.close()


@pytest.fixture
def api(kubernetes: World) -> MemoryKubernetes:
    return MemoryKubernetes(kubernetes.server, between=kubernetes.step)


def state(kubernetes: World, name: str = "job") -> tuple[str | None, str | None]:
    kubernetes.settle()
    found = kubernetes.store.find("RayJob", "default", name)
    assert found is not None
    status = found.get("status", {})
    return status.get("jobDeploymentStatus"), status.get("reason")


def pod_states(kubernetes: World) -> dict[str, str]:
    """Reasons for which containers wait or have ended, and phases of the others, by group."""
    found = {}
    for pod in kubernetes.store.all("Pod"):
        containers = pod["status"].get("containerStatuses") or [{"state": {}}]
        state = containers[0]["state"]
        why = state.get("waiting") or state.get("terminated") or {"reason": pod["status"]["phase"]}
        found[pod["metadata"]["labels"]["ray.io/group"]] = why["reason"]
    return found


def submit(head: FakeRay, name: str = "raybatch-1") -> None:
    body = json.dumps({"entrypoint": "true", "submission_id": name}).encode()
    headers = {"Authorization": "Bearer t", "Content-Type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(f"{head.url}/api/jobs/", body, headers)) as answer:
        assert answer.status == 200


def head(kubernetes: World) -> FakeRay:
    found: FakeRay = list(kubernetes.runtime.heads.values())[-1]
    return found


async def running(kubernetes: World, api: MemoryKubernetes) -> None:
    """Bring a RayJob to Running, with its Ray job."""
    await api.create(rayjob())
    await api.create(token())
    assert state(kubernetes) == ("Waiting", None)
    submit(head(kubernetes))
    await api.patch("RayJob", "job", {"spec": {"jobId": "raybatch-1"}})
    assert state(kubernetes) == ("Running", None)


async def test_a_head_waits_for_its_secret(kubernetes: World, api: MemoryKubernetes) -> None:
    await api.create(rayjob())
    assert state(kubernetes) == ("Initializing", None)
    assert pod_states(kubernetes) == {"headgroup": "CreateContainerConfigError"}
    await api.create(token())
    assert state(kubernetes) == ("Waiting", None)


async def test_a_young_head_stands_for_each_that_ended(kubernetes: World, api: MemoryKubernetes) -> None:
    kubernetes.runtime.broken["ray:2.60"] = 127
    await api.create(token())
    await api.create(rayjob())
    kubernetes.settle(2)
    seen = []
    for _ in range(8):
        kubernetes.step()
        (head,) = await api.list("Pod")
        assert head["status"].get("phase") in {"Pending", "Running"}
        seen.append(head["metadata"]["uid"])
    assert len(set(seen)) >= 4
    deleted = [one for one in await api.list("Event") if one["reason"] == "DeletedHeadPod"]
    assert all("ExitCode:127" in one["message"] for one in deleted)


async def test_only_one_deadline_holds_while_waiting(kubernetes: World, api: MemoryKubernetes) -> None:
    await api.create(rayjob())
    await api.create(token())
    assert state(kubernetes) == ("Waiting", None)
    kubernetes.server.clock.advance(51)
    await api.patch("RayJob", "job", {"spec": {"suspend": True}})
    assert state(kubernetes) == ("Waiting", None)
    kubernetes.server.clock.advance(50)
    assert state(kubernetes) == ("Failed", "PreRunningDeadlineExceeded")


async def test_the_active_deadline_holds_while_running(kubernetes: World, api: MemoryKubernetes) -> None:
    await running(kubernetes, api)
    kubernetes.server.clock.advance(49)
    assert state(kubernetes) == ("Running", None)
    await api.patch("RayJob", "job", {"spec": {"activeDeadlineSeconds": 70}})
    kubernetes.server.clock.advance(20)
    assert state(kubernetes) == ("Running", None)
    kubernetes.server.clock.advance(1)
    assert state(kubernetes) == ("Failed", "DeadlineExceeded")
    assert len(kubernetes.store.all("RayCluster")) == 1
    kubernetes.server.clock.advance(60)
    assert state(kubernetes) == ("Failed", "DeadlineExceeded")
    assert [*kubernetes.store.all("RayCluster"), *kubernetes.store.all("Pod")] == []


@pytest.mark.parametrize(
    ("status", "ended"),
    [
        ("SUCCEEDED", ("Complete", None)),
        ("STOPPED", ("Complete", None)),
        ("FAILED", ("Failed", "AppFailed")),
    ],
)
async def test_the_end_of_a_job(
    kubernetes: World, api: MemoryKubernetes, status: str, ended: tuple[str, str | None]
) -> None:
    await running(kubernetes, api)
    head(kubernetes).jobs["raybatch-1"].end(status)
    assert state(kubernetes) == ended


async def test_a_new_head_does_not_know_the_job(kubernetes: World, api: MemoryKubernetes) -> None:
    await running(kubernetes, api)
    before = head(kubernetes)
    [pod] = kubernetes.store.all("Pod")
    kubernetes.disasters.oom_kill(pod["metadata"]["name"])
    assert pod_states(kubernetes) == {"headgroup": "OOMKilled"}
    assert state(kubernetes) == ("Running", None)
    assert head(kubernetes).session_name != before.session_name
    assert pod_states(kubernetes) == {"headgroup": "Running"}


async def test_a_silent_head_ends_it_in_time(kubernetes: World, api: MemoryKubernetes) -> None:
    await running(kubernetes, api)
    await api.patch("RayJob", "job", {"spec": {"activeDeadlineSeconds": 9999}})
    head(kubernetes).down = True
    kubernetes.settle()
    kubernetes.server.clock.advance(299)
    assert state(kubernetes) == ("Running", None)
    kubernetes.server.clock.advance(2)
    assert state(kubernetes) == ("Failed", "JobStatusCheckTimeoutExceeded")


async def test_deletion_stops_the_job_and_takes_all(kubernetes: World, api: MemoryKubernetes) -> None:
    await running(kubernetes, api)
    kubernetes.kuberay_down = True
    assert await api.delete("RayJob", "job")
    kubernetes.settle()
    assert kubernetes.store.all("RayCluster") == []
    found = kubernetes.store.find("RayJob", "default", "job")
    assert found is not None
    assert found["metadata"]["finalizers"] == ["ray.io/rayjob-finalizer"]
    kubernetes.kuberay_down = False
    kubernetes.settle()
    assert [*kubernetes.store.all("RayJob"), *kubernetes.store.all("Pod")] == []


async def test_a_deleted_cluster_comes_again_while_running(kubernetes: World, api: MemoryKubernetes) -> None:
    await running(kubernetes, api)
    [cluster] = await api.list("RayCluster")
    await api.delete("RayCluster", cluster["metadata"]["name"])
    kubernetes.settle()
    [again] = await api.list("RayCluster")
    assert (again["metadata"]["name"], again["metadata"]["uid"] != cluster["metadata"]["uid"]) == (
        cluster["metadata"]["name"],
        True,
    )


@pytest.mark.parametrize(
    ("job", "message"),
    [
        (rayjob("a" * 48), "RayJob name should be no more than 47 characters"),
        (rayjob("1job"), "valid DNS1035 label"),
        (rayjob(backoffLimit=1), "BackoffLimit is incompatible with InteractiveMode"),
        (rayjob(suspend=True, shutdownAfterJobFinishes=False), "is not allowed to be suspended"),
        (rayjob(shutdownAfterJobFinishes=False), "cannot have TTLSecondsAfterFinished"),
        (rayjob(rayClusterSpec={"headGroupSpec": {"template": {}}}), "should have at least one container"),
        (rayjob(activeDeadlineSeconds=0), "activeDeadlineSeconds must be a positive integer"),
    ],
)
async def test_what_kuberay_refuses(
    kubernetes: World, api: MemoryKubernetes, job: Manifest, message: str
) -> None:
    name = job["metadata"]["name"]
    await api.create(job)
    assert state(kubernetes, name) == ("ValidationFailed", "ValidationFailed")
    found = kubernetes.store.find("RayJob", "default", name)
    assert found is not None
    assert message in found["status"]["message"]
    assert await api.list("RayCluster") == []


async def test_pods_that_find_no_node_say_why(kubernetes: World, api: MemoryKubernetes) -> None:
    await api.create(rayjob(workers=1, activeDeadlineSeconds=900))
    await api.create(token())
    assert state(kubernetes) == ("Initializing", None)
    assert pod_states(kubernetes) == {"headgroup": "Running", "gpus": "Pending"}
    text = f"0/1 nodes are available: 1 Insufficient {GPU}."
    [event] = await api.list("Event", fields="reason=FailedScheduling")
    assert (event["message"], event["type"], "firstTimestamp" in event) == (text, "Warning", False)
    pattern = Node("gpu-pool", {"cpu": "8", "memory": "32Gi", GPU: "1"})
    kubernetes.scheduler.groups.append(NodeGroup(pattern, seconds=90))
    assert state(kubernetes) == ("Initializing", None)
    [event] = await api.list("Event", fields="reason=TriggeredScaleUp")
    assert event["message"] == "pod triggered scale-up: [{gpu-pool 0->1 (max: 4)}]"
    kubernetes.server.clock.advance(90)
    assert state(kubernetes) == ("Waiting", None)


async def test_images_and_quotas_that_hold_up_pods(kubernetes: World, api: MemoryKubernetes) -> None:
    kubernetes.kubelet.bad_images["ray:2.60"] = "not found"
    kubernetes.server.access.quotas["default", f"requests.{GPU}"] = 0
    await api.create(rayjob(workers=1))
    kubernetes.settle()
    assert pod_states(kubernetes) == {"headgroup": "ImagePullBackOff"}
    [event] = await api.list("Event", fields="reason=FailedToCreateWorkerPod")
    assert "exceeded quota" in event["message"]


async def test_lost_and_preempted_pods_are_told_apart(kubernetes: World, api: MemoryKubernetes) -> None:
    kubernetes.scheduler.nodes.append(Node("spot-1", {"cpu": "8", "memory": "32Gi", GPU: "1"}))
    await api.create(rayjob(workers=1))
    await api.create(token())
    assert state(kubernetes) == ("Waiting", None)
    kubernetes.kuberay_down = True
    kubernetes.disasters.take_back("spot-1")
    [pod] = await api.list("Pod", labels="ray.io/node-type=worker")
    assert (pod["status"]["phase"], pod["status"]["reason"]) == ("Failed", "Terminated")
    assert ("DisruptionTarget", "TerminationByKubelet") in {
        (each["type"], each.get("reason")) for each in pod["status"]["conditions"]
    }


async def test_kueue_admits_by_quota() -> None:
    kubernetes = World(clock=Clock(start=1_700_000_000), kueue=True)
    api = MemoryKubernetes(kubernetes.server, between=kubernetes.step)
    await api.create(rayjob(queue="team", suspend=True))
    await api.create(token())
    assert state(kubernetes) == ("Suspended", None)
    [workload] = await api.list("Workload")
    assert workload["status"]["conditions"][0]["message"] == "LocalQueue team doesn't exist"
    kubernetes.kueue.queues["team"] = {GPU: 1}
    assert state(kubernetes) == ("Waiting", None)
    kubernetes.runtime.close()


def test_a_world_moves_by_itself_and_is_served() -> None:
    with world() as kubernetes:
        kubernetes.server.access.grant("airflow", token="t")
        for path, body in (
            ("apis/ray.io/v1/namespaces/default/rayjobs", rayjob()),
            ("api/v1/namespaces/default/secrets", token()),
        ):
            headers = {"Authorization": "Bearer t", "Content-Type": "application/json"}
            request = urllib.request.Request(
                f"{kubernetes.web.url}/{path}", json.dumps(body).encode(), headers
            )
            urllib.request.urlopen(request).close()
        with kubernetes.store.changed:
            assert kubernetes.store.changed.wait_for(lambda: bool(kubernetes.server.endpoints), 20)
