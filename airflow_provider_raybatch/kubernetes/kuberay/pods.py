# SPDX-License-Identifier: Apache-2.0
"""Pods of head and workers: how many, how large, and a user's words merged over them."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from airflow_provider_raybatch.coercion import typed
from airflow_provider_raybatch.contract.base import shown
from airflow_provider_raybatch.contract.failures import SpecError
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.kubernetes.api.client import Manifest
from airflow_provider_raybatch.kubernetes.cluster import KubeRayCluster, worker_range

MOST_REPLICAS = 4
"""Replicas that workers are allowed for where neither `workers` nor `replicas` is given."""
MOST_GPUS_PER_WORKER = 8
"""GPUs of one node, at most, where nothing is given."""


@dataclass(frozen=True)
class WorkerCounts:
    """Sizes of a cluster's group of workers.

    :param gpus: of a worker; 0 for none.
    """

    gpus: int
    fewest: int
    most: int


def worker_counts(spec: BatchInferenceSpec | None, cluster: KubeRayCluster) -> WorkerCounts:
    """How many workers, and how large they are.

    :param spec: of the batch inference; ``None`` for any other job, whose sizes are unknown.
    :param cluster: rendered and checked.
    :raises SpecError: what is given is not a number of workers.
    """
    of_worker = None if cluster.gpus_per_worker is None else typed(cluster.gpus_per_worker, int, "")
    of_replica = _gpus_of_a_replica(spec, cluster, of_worker)
    gpus = gpus_of_a_worker(of_replica) if of_worker is None or not of_replica else of_worker
    fewest, most = (0, None) if cluster.workers is None else worker_range(cluster.workers)
    if most is None:
        replicas = _replicas(spec, gpus)
        most = max(fewest, _workers(replicas, of_replica, gpus, _beside(spec)) if of_replica else replicas)
    return WorkerCounts(gpus, fewest, most)


def gpus_of_a_worker(of_replica: int) -> int:
    """GPUs of a worker that fits a replica: all of them, or an even share where no node has as many."""
    if not of_replica:
        return 0
    sizes = range(min(of_replica, MOST_GPUS_PER_WORKER), 0, -1)
    return next(size for size in sizes if of_replica % size == 0)


def _workers(replicas: int, of_replica: int, of_worker: int, beside: int = 1) -> int:
    """Workers for so many replicas.

    :param beside: replicas that share one GPU.
    """
    replicas = math.ceil(replicas / beside)
    if of_replica <= of_worker:  # a replica whose GPUs fit a node stays on one
        return math.ceil(replicas / (of_worker // of_replica))
    return math.ceil(replicas * of_replica / of_worker)


def _gpus_of_a_replica(
    spec: BatchInferenceSpec | None, cluster: KubeRayCluster, of_worker: int | None
) -> int:
    if of_worker == 0:
        return 0  # vLLM runs on CPUs then
    if spec is None:
        return 1 if cluster.accelerator_type or of_worker else 0
    if spec.engine == "echo" and not spec.has_parallel_sizes:
        return 0
    return spec.gpus_per_replica


def _beside(spec: BatchInferenceSpec | None) -> int:
    """Replicas that share a GPU by `num_gpus`."""
    share = spec.num_gpus if spec is not None else None
    return 1 if share is None else max(1, int(1 / share + 1e-9))


def _replicas(spec: BatchInferenceSpec | None, gpus: int) -> int:
    """The most that there may be."""
    if spec is None or (spec.replicas is None and gpus):
        return MOST_REPLICAS
    if spec.replicas is None:
        return 1  # without GPUs, one uses all CPUs of its node
    return spec.replicas if isinstance(spec.replicas, int) else spec.replicas[1]


SECURITY: Manifest = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "seccompProfile": {"type": "RuntimeDefault"},
}
"""Of Kubernetes' restricted profile, all but the user, which the image sets."""
_HEAD_CPUS, _HEAD_MEMORY = 2, "8Gi"
_PORTS = {"gcs": 6379, "dashboard": 8265, "client": 10001, "metrics": 8080}
_KEPT = {"karpenter.sh/do-not-disrupt": "true"}
"""Annotation of pods that Karpenter does not move to repack nodes: Ray's autoscaler removes idle ones."""
_HEAD_KEPT = {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false"}
"""The same for the cluster autoscaler; with the head's pod the job would be lost."""
_STOP_SECONDS = 60
"""Between the end of a job and that of its pods; replicas have written their rows before."""
_LARGE_GPUS = (
    "A100", "H100", "H200", "H20", "B200", "B300", "GB200", "GB300", "RTX-PRO-6000", "AMD-Instinct-MI",
)  # fmt: skip
"""Accelerators whose nodes have 12 CPUs and 85 GiB or more for a GPU; other nodes may have 4 and 16 GiB."""


def head_group(cluster: KubeRayCluster) -> Manifest:
    """The head: no Ray CPUs, so that no replica runs beside the driver, whose own tasks ask for none."""
    container = _container(cluster, "ray-head")
    container["ports"] = [{"name": name, "containerPort": port} for name, port in _PORTS.items()]
    container["resources"] = _resources(_HEAD_CPUS, _HEAD_MEMORY)
    return {
        "serviceType": "ClusterIP",
        "rayStartParams": {"num-cpus": "0", "num-gpus": "0", "dashboard-host": "0.0.0.0"},
        "template": _template(container, _HEAD_KEPT),
    }


def worker_group(cluster: KubeRayCluster, gpus: int, counts: tuple[int, int]) -> Manifest:
    """The workers, all alike.

    :param gpus: of a worker; 0 for none.
    :param counts: fewest and most.
    """
    container = _container(cluster, "ray-worker")
    large = (cluster.accelerator_type or "").startswith(_LARGE_GPUS)
    cpus, gib = (8, 64) if large else (3, 12)  # Kubernetes keeps a part of a node for itself
    gpu = "amd.com/gpu" if (cluster.accelerator_type or "").startswith("AMD-") else "nvidia.com/gpu"
    alike = max(gpus, 1)
    container["resources"] = _resources(cpus * alike, f"{gib * alike}Gi", {gpu: str(gpus)} if gpus else {})
    template = _template(container)
    if cluster.node_selector:
        template["spec"]["nodeSelector"] = dict(cluster.node_selector)
    if gpus:
        template["spec"]["tolerations"] = [{"key": gpu, "operator": "Exists", "effect": "NoSchedule"}]
    parameters = {}
    if gpus and cluster.accelerator_type:
        # Ray's autoscaler knows of a group without nodes only what is written here.
        # In single quotes: KubeRay can't read the escaped form of its samples, and then sets no GPUs.
        parameters["resources"] = f"'{json.dumps({f'accelerator_type:{cluster.accelerator_type}': 1})}'"
    fewest, most = counts
    return {
        "groupName": "gpu-workers" if gpus else "cpu-workers",
        "replicas": fewest,
        "minReplicas": fewest,
        "maxReplicas": most,
        "rayStartParams": parameters,
        "template": template,
    }


def overridden(spec: Manifest, override: Mapping[str, Any]) -> None:
    """Merge `pod_override` over the template of each group of a RayCluster, in place.

    :raises SpecError: an item of a list lacks what tells it apart.
    """
    for group in (spec["headGroupSpec"], *(spec.get("workerGroupSpecs") or ())):
        own = copy.deepcopy(dict(override))
        inner = own.get("spec")
        if isinstance(inner, Mapping) and isinstance(inner.get("containers"), (list, tuple)):
            ray = {"name": group["template"]["spec"]["containers"][0].get("name")}
            named = [ray | dict(one) if isinstance(one, Mapping) else one for one in inner["containers"]]
            own["spec"] = {**inner, "containers": named}
        group["template"] = merged(group["template"], own)


def _resources(cpus: Any, memory: str, more: Mapping[str, str] | None = None) -> Manifest:
    """Requests equal limits, so that Ray's sizes are those that Kubernetes keeps free."""
    amounts = {"cpu": str(cpus), "memory": memory, **(more or {})}
    return {"requests": amounts, "limits": dict(amounts)}


def _container(cluster: KubeRayCluster, name: str) -> Manifest:
    return {
        "name": name,
        "image": cluster.image,
        # The end of its output says why it could not start; KubeRay soon deletes the pod.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": dict(SECURITY),
    }


def _template(container: Manifest, kept: Mapping[str, str] | None = None) -> Manifest:
    spec = {
        "restartPolicy": "Never",  # the autoscaler replaces pods, and a head that restarts has lost its job
        "terminationGracePeriodSeconds": _STOP_SECONDS,
        "enableServiceLinks": False,  # a Service `vllm` would set VLLM_PORT, to what vLLM can't read
        "containers": [container],
    }
    return {"metadata": {"annotations": {**_KEPT, **(kept or {})}}, "spec": spec}


_KEYS = {
    "containers": "name",
    "initContainers": "name",
    "env": "name",
    "volumes": "name",
    "imagePullSecrets": "name",
    "volumeMounts": "mountPath",
    "ports": "containerPort",
}
"""Lists whose items are told apart by a key; any other list is replaced."""
_ADDED = frozenset({"tolerations"})
"""Lists that grow: a pod that must tolerate one taint more still tolerates those of its GPUs."""
_WHOLE = frozenset({"env"})
"""Lists whose items are replaced: a variable has a value or a reference, never both."""


def merged(base: Any, patch: Any, path: str = "pod_override") -> Any:
    """`base` with `patch` over it; ``None`` removes a field, and an item that is new is added.

    :raises SpecError: an item of a list lacks what tells it apart.
    """
    if not isinstance(base, Mapping) or not isinstance(patch, Mapping):
        return patch
    result = dict(base)
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        elif key in _ADDED and isinstance(value, (list, tuple)):
            result[key] = [*_listed(result.get(key), f"{path}.{key}"), *value]
        elif key in _KEYS and isinstance(value, (list, tuple)):
            result[key] = _items(_listed(result.get(key), f"{path}.{key}"), value, key, f"{path}.{key}")
        else:
            result[key] = merged(result.get(key, {}), value, f"{path}.{key}")
    return result


def _listed(base: Any, path: str) -> list[Any]:
    """A list that is merged with another one."""
    if not isinstance(base or [], (list, tuple)) or not all(isinstance(one, Mapping) for one in base or ()):
        raise SpecError(
            f"{path}: the spec below it has {shown(base)} there, not a list of objects; correct it."
        )
    return list(base or ())


def _items(base: Any, patch: Any, field: str, path: str) -> list[Any]:
    key = _KEYS[field]
    items = list(base)
    for number, item in enumerate(patch):
        if not isinstance(item, Mapping) or key not in item:
            raise SpecError(f"{path}: item {number} has no {key}, by which it is merged; give it.")
        place = next((i for i, one in enumerate(items) if one.get(key) == item[key]), None)
        if place is None:
            items.append(merged({}, item, path))
        else:
            items[place] = dict(item) if field in _WHOLE else merged(items[place], item, path)
    return items
