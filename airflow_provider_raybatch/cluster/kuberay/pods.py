# SPDX-License-Identifier: Apache-2.0
"""Pods of head and workers, and the groups that KubeRay makes of them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from airflow_provider_raybatch.cluster.kuberay.api import Manifest
from airflow_provider_raybatch.cluster.kuberay.cluster import KubeRayCluster
from airflow_provider_raybatch.cluster.kuberay.node_labels import gpu_node_labels, gpu_resource
from airflow_provider_raybatch.cluster.kuberay.pod_checks import OF_MOUNT, SHARED_MEMORY

GPU_GROUP, CPU_GROUP = "gpu-workers", "cpu-workers"

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
    sizes = cluster.head or {}
    container = _container(cluster, "ray-head")
    container["ports"] = [{"name": name, "containerPort": port} for name, port in _PORTS.items()]
    container["resources"] = _resources(sizes.get("cpus") or _HEAD_CPUS, sizes.get("memory") or _HEAD_MEMORY)
    template = _template(cluster, container, _HEAD_KEPT)
    if sizes.get("node_selector"):
        template["spec"]["nodeSelector"] = dict(sizes["node_selector"])
    if sizes.get("tolerations"):
        template["spec"]["tolerations"] = [dict(one) for one in sizes["tolerations"]]
    return {
        "serviceType": "ClusterIP",
        "rayStartParams": {"num-cpus": "0", "num-gpus": "0", "dashboard-host": "0.0.0.0"},
        "template": template,
    }


def gpu_group(cluster: KubeRayCluster, gpus: int, counts: tuple[int, int]) -> Manifest:
    """Workers with GPUs."""
    cpus, memory = _sizes(cluster, gpus)
    gpu = gpu_resource(cluster.accelerator_type)
    container = _container(cluster, "ray-worker")
    container["resources"] = _resources(cpus, memory, {gpu: str(gpus)})
    template = _template(cluster, container)
    labels = gpu_node_labels(cluster.cloud, cluster.accelerator_type)
    selector = cluster.node_selector if cluster.node_selector is not None else labels
    if selector:
        template["spec"]["nodeSelector"] = dict(selector)
    tolerated = {"key": gpu, "operator": "Exists", "effect": "NoSchedule"}
    template["spec"]["tolerations"] = [tolerated, *map(dict, cluster.tolerations or ())]
    parameters = {}
    if cluster.accelerator_type:
        # Ray's autoscaler knows of a group without nodes only what is written here.
        # In single quotes: KubeRay can't read the escaped form of its samples, and then sets no GPUs.
        parameters["resources"] = f"'{json.dumps({f'accelerator_type:{cluster.accelerator_type}': 1})}'"
    return _group(GPU_GROUP, counts, parameters, template)


def cpu_group(cluster: KubeRayCluster, counts: tuple[int, int], *, alone: bool) -> Manifest:
    """Workers without GPUs.

    :param alone: whether the cluster has no others, so that the arguments of workers are theirs.
    """
    cpus, memory = _sizes(cluster, 1)
    container = _container(cluster, "ray-worker")
    container["resources"] = _resources(cpus, memory)
    template = _template(cluster, container)
    if alone and cluster.node_selector:
        template["spec"]["nodeSelector"] = dict(cluster.node_selector)
    if cluster.tolerations:
        template["spec"]["tolerations"] = [dict(one) for one in cluster.tolerations]
    return _group(CPU_GROUP, counts, {}, template)


def _sizes(cluster: KubeRayCluster, gpus: int) -> tuple[Any, str]:
    large = (cluster.accelerator_type or "").startswith(_LARGE_GPUS)
    cpus, gib = (8, 64) if large else (3, 12)  # Kubernetes keeps a part of a node for itself
    return cluster.cpus_per_worker or cpus * gpus, cluster.memory_per_worker or f"{gib * gpus}Gi"


def _group(name: str, counts: tuple[int, int], parameters: dict[str, str], template: Manifest) -> Manifest:
    fewest, most = counts
    return {
        "groupName": name,
        "replicas": fewest,
        "minReplicas": fewest,
        "maxReplicas": most,
        "rayStartParams": parameters,
        "template": template,
    }


def _resources(cpus: Any, memory: str, more: Mapping[str, str] | None = None) -> Manifest:
    """Requests equal limits, so that Ray's sizes are those that Kubernetes keeps free."""
    amounts = {"cpu": str(cpus), "memory": memory, **(more or {})}
    return {"requests": amounts, "limits": dict(amounts)}


def _container(cluster: KubeRayCluster, name: str) -> Manifest:
    container: Manifest = {"name": name, "image": cluster.image}
    # The end of its output says why it could not start; KubeRay soon deletes the pod.
    container["terminationMessagePolicy"] = "FallbackToLogsOnError"
    if cluster.image_pull_policy:
        container["imagePullPolicy"] = cluster.image_pull_policy
    if cluster.env:
        container["env"] = [_variable(name, value) for name, value in cluster.env.items()]
    mounts = [_mount(volume) for volume in cluster.volumes or ()]
    container["volumeMounts"] = [{"name": SHARED_MEMORY, "mountPath": "/dev/shm"}, *mounts]
    container["securityContext"] = dict(SECURITY)
    return container


def _variable(name: str, value: Any) -> Manifest:
    if isinstance(value, Mapping):
        return {"name": name, "valueFrom": dict(value)}
    return {"name": name, "value": str(value)}


def _mount(volume: Mapping[str, Any]) -> Manifest:
    return {"name": volume["name"], **{key: volume[key] for key in OF_MOUNT if key in volume}}


def _template(
    cluster: KubeRayCluster, container: Manifest, kept: Mapping[str, str] | None = None
) -> Manifest:
    # Ray's object store lies in shared memory; Docker's 64 MiB would make it use the disk.
    shared = {"medium": "Memory", "sizeLimit": container["resources"]["limits"]["memory"]}
    volumes = [{k: v for k, v in volume.items() if k not in OF_MOUNT} for volume in cluster.volumes or ()]
    spec: Manifest = {
        "restartPolicy": "Never",  # the autoscaler replaces pods, and a head that restarts has lost its job
        "terminationGracePeriodSeconds": _STOP_SECONDS,
        "enableServiceLinks": False,  # a Service `vllm` would set VLLM_PORT, to what vLLM can't read
        "containers": [container],
        "volumes": [{"name": SHARED_MEMORY, "emptyDir": shared}, *volumes],
    }
    if cluster.service_account:
        spec["serviceAccountName"] = cluster.service_account
    if cluster.image_pull_secrets:
        spec["imagePullSecrets"] = [{"name": name} for name in cluster.image_pull_secrets]
    metadata = {"annotations": {**_KEPT, **(kept or {}), **_of_pods(cluster.annotations)}}
    if labels := _of_pods(cluster.labels):
        metadata["labels"] = labels
    return {"metadata": metadata, "spec": spec}


def _of_pods(given: Mapping[str, str] | None) -> dict[str, str]:
    """Those of labels or annotations that pods get, too: with Kueue's, each pod would be queued again."""
    return {key: value for key, value in (given or {}).items() if not key.startswith("kueue.x-k8s.io/")}
