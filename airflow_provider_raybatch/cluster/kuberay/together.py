# SPDX-License-Identifier: Apache-2.0
"""Arguments of a KubeRayCluster that exclude or need each other."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from airflow_provider_raybatch.cluster.kuberay.node_labels import gpu_node_labels
from airflow_provider_raybatch.cluster.kuberay.versions import ray_version
from airflow_provider_raybatch.cluster.kuberay.worker_checks import worker_range
from airflow_provider_raybatch.coercion import typed
from airflow_provider_raybatch.contract.failures import SpecError

KUEUE_QUEUE = "kueue.x-k8s.io/queue-name"

_WITH_NAME = frozenset({"name", "namespace", "kubernetes_conn_id", "dashboard_address", "cluster_wait"})
_NOT_WITH_SPEC = (
    "accelerator_type", "gpus_per_worker", "workers", "cpu_workers", "cpus_per_worker", "memory_per_worker",
    "head", "cloud", "node_selector", "tolerations", "service_account", "env", "volumes",
    "image_pull_secrets", "image_pull_policy",
)  # fmt: skip


def check_together(known: Mapping[str, Any], unknown: Collection[str], changed: Collection[str]) -> None:
    """Refuse arguments that don't go together.

    :param known: those that no template decides, without ``None``.
    :param unknown: names of the others.
    :param changed: names of the arguments that are not at their defaults.
    """
    if "name" in known:
        _check_existing(known["name"], changed)
        return
    if "spec" in known:
        _check_with_spec(changed)
    elif "image" not in {*known, *unknown} and not {"name", "spec"} & set(unknown):
        raise SpecError(
            "image: a value is needed to make a cluster; name an image with Ray, or give name or spec."
        )
    if "image" in known and "ray_version" not in unknown and (known.keys().isdisjoint({"spec"})):
        ray_version(known["image"], known.get("ray_version"))
    elif "ray_version" in known:
        ray_version(None, known["ray_version"])
    _check_gpus(known)
    _check_queue(known)


def _check_existing(name: str, changed: Collection[str]) -> None:
    for other in changed:
        if other not in _WITH_NAME:
            raise SpecError(
                f"name: {name!r} is a running cluster, which {other} can't change; remove {other}, or name."
            )


def _check_with_spec(changed: Collection[str]) -> None:
    for other in _NOT_WITH_SPEC:
        if other in changed:
            raise SpecError(f"spec: it decides what {other} would; remove {other}, or write it into patch.")
    if "idle_timeout" in changed:
        raise SpecError("spec: its autoscalerOptions have idleTimeoutSeconds; remove idle_timeout.")


def _check_gpus(known: Mapping[str, Any]) -> None:
    if "gpus_per_worker" in known and typed(known["gpus_per_worker"], int, "gpus_per_worker") == 0:
        for name in ("accelerator_type", "workers"):
            if name in known and not (name == "workers" and worker_range(known[name], name)[1] == 0):
                raise SpecError(
                    f"gpus_per_worker: it is 0, and {name} is about workers with GPUs; remove {name}, or use "
                    "cpu_workers."
                )
    cloud, kind = known.get("cloud"), known.get("accelerator_type")
    if cloud and kind and "node_selector" not in known and not gpu_node_labels(cloud, kind):
        raise SpecError(
            f"cloud: no label of {cloud!r} nodes is known for the accelerator {kind!r}; give node_selector."
        )


def _check_queue(known: Mapping[str, Any]) -> None:
    labelled = (known.get("labels") or {}).get(KUEUE_QUEUE)
    if labelled is not None and known.get("kueue_queue") not in (None, labelled):
        raise SpecError(
            f"kueue_queue: it is {known['kueue_queue']!r}, and labels have the queue {labelled!r}; keep one."
        )
