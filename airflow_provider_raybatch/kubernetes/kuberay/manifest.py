# SPDX-License-Identifier: Apache-2.0
"""What is created on Kubernetes: a RayJob around a cluster, and the Secret with the cluster's token."""

from __future__ import annotations

import base64
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from airflow_provider_raybatch.cluster.submit.resolve import SubmissionKey
from airflow_provider_raybatch.contract.submission import key_of_job
from airflow_provider_raybatch.kubernetes.api.client import Manifest
from airflow_provider_raybatch.kubernetes.cluster import KubeRayCluster
from airflow_provider_raybatch.kubernetes.kuberay.pods import (
    SECURITY,
    WorkerCounts,
    head_group,
    overridden,
    worker_group,
)
from airflow_provider_raybatch.kubernetes.kuberay.rayjob import (
    FINGERPRINT,
    NUMBER,
    RUN_TOKEN,
    ClusterClaim,
    rayjob_name,
    run_labels,
)
from airflow_provider_raybatch.kubernetes.kuberay.reach import TOKEN_KEY
from airflow_provider_raybatch.kubernetes.kuberay.verdicts import QUEUE_LABEL
from airflow_provider_raybatch.kubernetes.user_manifest import (
    UserManifest,
    check_containers,
    check_plain,
    ray_version,
    read_manifest,
)

_AUTOSCALER_SIZES = {"cpu": "500m", "memory": "1Gi"}
"""Of the sidecar of the head; KubeRay's own 512 MiB are short for Ray's autoscaler v2 with large logs."""
_AUTOSCALER = {
    "version": "v2",
    "upscalingMode": "Default",
    "idleTimeoutSeconds": 60,
    "securityContext": SECURITY,
    "resources": {"requests": _AUTOSCALER_SIZES, "limits": _AUTOSCALER_SIZES},
}


def ray_cluster_spec(
    cluster: KubeRayCluster, counts: WorkerCounts, own: UserManifest | None = None
) -> Manifest:
    """The RayCluster's spec, without authentication, which each RayJob adds.

    :param cluster: rendered and checked.
    :param counts: of no effect on a spec that the cluster gives.
    :param own: that spec, where it has been read already.
    :raises SpecError: what the user gave does not make a cluster.
    """
    own = own or _own(cluster)
    spec = _made(cluster, counts) if cluster.spec is None else _with_image(cluster, own)
    if cluster.pod_override:
        check_plain(cluster.pod_override, "pod_override")
        overridden(spec, cluster.pod_override)
        check_containers(spec, "pod_override")
    return spec


def _own(cluster: KubeRayCluster) -> UserManifest:
    return UserManifest({}) if cluster.spec is None else read_manifest(cluster.spec)


def _with_image(cluster: KubeRayCluster, own: UserManifest) -> Manifest:
    """The user's own spec, with the image of the arguments in it."""
    spec = own.spec
    spec["rayVersion"] = own.version(cluster.image, cluster.ray_version)
    if cluster.image is not None:
        for group in (spec["headGroupSpec"], *(spec.get("workerGroupSpecs") or ())):
            group["template"]["spec"]["containers"][0]["image"] = cluster.image  # Ray's is the first
    return spec


def _made(cluster: KubeRayCluster, counts: WorkerCounts) -> Manifest:
    most = counts.most
    fewest = most if cluster.kueue_queue else counts.fewest  # Kueue admits a cluster whole
    groups = [worker_group(cluster, counts.gpus, (fewest, most))] if most else []
    spec: Manifest = {
        "rayVersion": ray_version(cluster.image, cluster.ray_version),
        "headGroupSpec": head_group(cluster),
        "workerGroupSpecs": groups,
    }
    if fewest < most:
        spec |= {"enableInTreeAutoscaling": True, "autoscalerOptions": _AUTOSCALER}
    return spec


def _queue(cluster: KubeRayCluster, own: UserManifest) -> str | None:
    """Kueue's queue, by argument or by label."""
    return cluster.kueue_queue or own.labels.get(QUEUE_LABEL)


@dataclass(frozen=True)
class Deadlines:
    """When KubeRay ends a RayJob by itself, in seconds.

    :param pre_running: until a job has been submitted.
    :param active: after its start, until a follower extends them.
    :param after_end: that an ended cluster stays, should Airflow not delete it.
    """

    pre_running: int
    active: int
    after_end: int = 600


def rayjob_manifest(
    cluster: KubeRayCluster,
    counts: WorkerCounts,
    key: SubmissionKey,
    number: int,
    fingerprint: str,
    deadlines: Deadlines,
) -> Manifest:
    """The RayJob that holds a run's cluster.

    :param cluster: rendered and checked.
    :param number: of the run's cluster; its Ray job has the same one.
    """
    own = _own(cluster)
    spec = ray_cluster_spec(cluster, counts, own)
    name = rayjob_name(key, number)
    # Each Secret has another name, so each cluster has a token of its own.
    spec["authOptions"] = {"mode": "token", "secretName": f"{name}-{secrets.token_hex(4)}"}
    # One of our names would tell a sweeper what is not so, such as that tasks share the cluster.
    theirs = {name: value for name, value in own.annotations.items() if not name.startswith("raybatch/")}
    metadata: Manifest = {
        "name": name,
        "labels": {**own.labels, **run_labels(key)},
        "annotations": {**theirs, **_annotations(key, number, fingerprint)},
    }
    if cluster.namespace:
        metadata["namespace"] = cluster.namespace
    job: Manifest = {
        "submissionMode": "InteractiveMode",
        "shutdownAfterJobFinishes": True,
        "ttlSecondsAfterFinished": deadlines.after_end,
        "preRunningDeadlineSeconds": deadlines.pre_running,
        "activeDeadlineSeconds": deadlines.active,
        "backoffLimit": 0,
        "rayClusterSpec": spec,
    }
    if queue := _queue(cluster, own):
        metadata["labels"][QUEUE_LABEL] = queue
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

    :param labels: of the RayJob.
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


def cluster_token(run_key: str, secret: str) -> str:
    """The token in a cluster's Secret, 64 hex digits.

    :param secret: name of the Secret; each cluster has one of its own.
    """
    return key_of_job(run_key, f"secret {secret}")
