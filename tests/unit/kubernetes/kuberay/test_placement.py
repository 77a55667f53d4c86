# SPDX-License-Identifier: Apache-2.0
"""Clusters of arguments find their nodes and KubeRay's approval, on the stand-in for a Kubernetes."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_raybatch.kubernetes.cluster import KubeRayCluster
from airflow_provider_raybatch.kubernetes.kuberay.manifest import secret_manifest
from airflow_provider_raybatch.kubernetes.kuberay.rayjob import ClusterClaim, rayjob_state
from tests.support.kubernetes.clock import Clock
from tests.support.kubernetes.kuberay_rules import wrong_in_rayjob
from tests.support.kubernetes.memory import MemoryKubernetes
from tests.support.kubernetes.nodes import Node
from tests.support.kubernetes.world import World

from .conftest import rayjob_of

IMAGE = "rayproject/ray:2.60.0"


def manifest(**arguments: Any) -> dict[str, Any]:
    return rayjob_of(KubeRayCluster(image=IMAGE, **arguments))


async def created(world: World, job: dict[str, Any], steps: int = 30) -> str:
    """The state of a RayJob some steps after it was created."""
    api = MemoryKubernetes(world.server, between=world.step)
    rayjob = rayjob_state(await api.create(job))
    claim = ClusterClaim(api.namespace, rayjob.name, rayjob.uid, 3, rayjob.secret)
    await api.create(secret_manifest(claim, "ab" * 32))
    for _ in range(steps):
        world.step()
    found = await api.get("RayJob", rayjob.name)
    assert found is not None
    return rayjob_state(found).deployment_status


def nodes_of_pods(world: World) -> dict[str, str | None]:
    pods = world.store.all("Pod")
    return {pod["metadata"]["labels"]["ray.io/node-type"]: pod["spec"].get("nodeName") for pod in pods}


GPU_NODES = [
    # Roughly what Kubernetes leaves of the clouds' smallest nodes with one GPU of each kind.
    ("L4", {"cloud.google.com/gke-accelerator": "nvidia-l4"}, {"cpu": "3920m", "memory": "13Gi"}),
    ("A10G", {"karpenter.k8s.aws/instance-gpu-name": "a10g"}, {"cpu": "3920m", "memory": "14Gi"}),
    ("A100", {"cloud.google.com/gke-accelerator": "nvidia-tesla-a100"}, {"cpu": "11", "memory": "77Gi"}),
    ("H100", {"kubernetes.azure.com/accelerator": "nvidia"}, {"cpu": "39", "memory": "300Gi"}),
]


@pytest.mark.parametrize(("kind", "labels", "room"), GPU_NODES)
async def test_workers_fit_the_smallest_nodes(kind: str, labels: Any, room: dict[str, str]) -> None:
    other = Node("other", {"cpu": "64", "memory": "512Gi", "nvidia.com/gpu": "8"}, {"cloud": "no"})
    node = Node("gpu", {**room, "nvidia.com/gpu": "1"}, labels, ("nvidia.com/gpu",))
    world = World(clock=Clock(start=1_700_000_000), nodes=[other, node])
    job = manifest(accelerator_type=kind, workers=1, node_selector=labels)
    assert await created(world, job) == "Waiting"
    assert nodes_of_pods(world) == {"head": "other", "worker": "gpu"}


async def test_head_stays_away_from_nodes_with_gpus() -> None:
    node = Node("gpu", {"cpu": "64", "memory": "512Gi", "nvidia.com/gpu": "8"}, {}, ("nvidia.com/gpu",))
    world = World(clock=Clock(start=1_700_000_000), nodes=[node])
    assert await created(world, manifest(accelerator_type="L4", workers=1)) == "Initializing"
    assert nodes_of_pods(world)["head"] is None


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"accelerator_type": "H100", "workers": (0, 4)},
        {"workers": 2, "gpus_per_worker": 8, "kueue_queue": "team"},
    ],
)
def test_kuberay_accepts_what_is_made(arguments: dict[str, Any]) -> None:
    assert wrong_in_rayjob(manifest(**arguments)) is None
