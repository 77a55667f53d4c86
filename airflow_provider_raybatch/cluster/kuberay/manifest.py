# SPDX-License-Identifier: Apache-2.0
"""What is created on Kubernetes: a RayJob around a cluster, and the Secret with the cluster's token."""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping
from typing import Any

from airflow_provider_raybatch.cluster.kuberay.api import Manifest
from airflow_provider_raybatch.cluster.kuberay.cluster import KubeRayCluster
from airflow_provider_raybatch.cluster.kuberay.counts import WorkerCounts
from airflow_provider_raybatch.cluster.kuberay.names import rayjob_name, run_labels
from airflow_provider_raybatch.cluster.kuberay.pods import SECURITY, cpu_group, gpu_group, head_group
from airflow_provider_raybatch.cluster.kuberay.rayjob import FINGERPRINT, NUMBER, RUN_TOKEN, ClusterClaim
from airflow_provider_raybatch.cluster.submit.resolve import SubmissionKey
from airflow_provider_raybatch.contract.durations import seconds_of

KUEUE_QUEUE = "kueue.x-k8s.io/queue-name"
KUEUE_ELASTIC = "kueue.x-k8s.io/elastic-job"
TOKEN_KEY = "auth_token"
"""Where KubeRay looks for the token in a Secret."""

_AUTOSCALER_SIZES = {"cpu": "500m", "memory": "1Gi"}
"""Of the sidecar of the head; KubeRay's own 512 MiB are short for Ray's autoscaler v2 with large logs."""


def ray_cluster_spec(cluster: KubeRayCluster, counts: WorkerCounts) -> Manifest:
    """The RayCluster's spec, without authentication, which each RayJob adds.

    :param cluster: rendered and checked.
    """
    groups = []
    if counts.gpu_workers[1]:
        groups.append(gpu_group(cluster, counts.gpus_per_worker, counts.gpu_workers))
    if counts.cpu_workers[1]:
        groups.append(cpu_group(cluster, counts.cpu_workers, alone=not groups))
    spec: Manifest = {
        "rayVersion": cluster.ray_version,
        "headGroupSpec": head_group(cluster),
        "workerGroupSpecs": groups,
    }
    if is_autoscaled(cluster, counts):
        spec |= {"enableInTreeAutoscaling": True, "autoscalerOptions": _autoscaler(cluster)}
    else:
        for group in groups:  # Kueue admits a cluster whole
            group["replicas"] = group["minReplicas"] = group["maxReplicas"]
    return spec


def is_autoscaled(cluster: KubeRayCluster, counts: WorkerCounts) -> bool:
    """Whether Ray's autoscaler decides how many workers there are.

    Kueue refuses it, unless its feature of elastic jobs is on, which an annotation asks for.
    """
    elastic = str((cluster.annotations or {}).get(KUEUE_ELASTIC, "")).lower() == "true"
    return not counts.fixed and (not cluster.kueue_queue or elastic)


def _autoscaler(cluster: KubeRayCluster) -> Manifest:
    return {
        "version": "v2",
        "upscalingMode": "Default",
        "idleTimeoutSeconds": math.ceil(seconds_of(cluster.idle_timeout)),
        "securityContext": dict(SECURITY),
        "resources": {"requests": dict(_AUTOSCALER_SIZES), "limits": dict(_AUTOSCALER_SIZES)},
    }


def rayjob_manifest(
    cluster: KubeRayCluster,
    counts: WorkerCounts,
    key: SubmissionKey,
    number: int,
    fingerprint: str,
    *,
    secret: str,
    pre_running_deadline: int,
    active_deadline: int,
) -> Manifest:
    """The RayJob that holds a run's cluster.

    :param cluster: rendered and checked.
    :param number: of the run's cluster; its Ray job has the same one.
    :param secret: name of the Secret with the token.
    :param pre_running_deadline: seconds after which KubeRay ends it if no job has been submitted.
    :param active_deadline: seconds after its start at which KubeRay ends it, until a follower extends them.
    """
    spec = ray_cluster_spec(cluster, counts)
    spec["authOptions"] = {"mode": "token", "secretName": secret}
    metadata: Manifest = {
        "name": rayjob_name(key, number),
        "labels": {**(cluster.labels or {}), **run_labels(key)},
        "annotations": {**(cluster.annotations or {}), **_annotations(key, number, fingerprint)},
    }
    if cluster.namespace:
        metadata["namespace"] = cluster.namespace
    job: Manifest = {
        "submissionMode": "InteractiveMode",
        "shutdownAfterJobFinishes": True,
        "ttlSecondsAfterFinished": math.ceil(seconds_of(cluster.ttl_after_finished)),
        "preRunningDeadlineSeconds": pre_running_deadline,
        "activeDeadlineSeconds": active_deadline,
        "backoffLimit": 0,
        "rayClusterSpec": spec,
    }
    if cluster.kueue_queue:
        metadata["labels"][KUEUE_QUEUE] = cluster.kueue_queue
        job["suspend"] = True  # until Kueue admits it
    return {"apiVersion": "ray.io/v1", "kind": "RayJob", "metadata": metadata, "spec": job}


def _annotations(key: SubmissionKey, number: int, fingerprint: str) -> dict[str, str]:
    task = key.task
    return {
        NUMBER: str(number),
        FINGERPRINT: fingerprint,
        RUN_TOKEN: key.run_token,
        "raybatch/namespace": task.namespace,
        "raybatch/dag-id": task.dag_id,
        "raybatch/run-id": task.run_id,
        "raybatch/task-id": task.task_id,
        "raybatch/map-index": str(task.map_index),
    }


def secret_manifest(claim: ClusterClaim, token: str, labels: Mapping[str, str] | None = None) -> Manifest:
    """The Secret with a cluster's token, which goes with its RayJob.

    :param labels: of the RayJob, so that a sweeper finds a Secret that Kubernetes has not collected.
    """
    owner: dict[str, Any] = {
        "apiVersion": "ray.io/v1",
        "kind": "RayJob",
        "name": claim.name,
        "uid": claim.uid,
        "controller": False,
        "blockOwnerDeletion": False,  # the right to block would need update of rayjobs/finalizers
    }
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": claim.secret,
            "namespace": claim.namespace,
            "labels": dict(labels or {}),
            "ownerReferences": [owner],
        },
        "type": "Opaque",
        "data": {TOKEN_KEY: base64.b64encode(token.encode()).decode()},
    }
