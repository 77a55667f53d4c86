# SPDX-License-Identifier: Apache-2.0
"""What is created on Kubernetes: a RayJob around a cluster, and the Secret with the cluster's token."""

from __future__ import annotations

import base64
import math
import secrets
from collections.abc import Mapping
from typing import Any

from airflow_provider_raybatch.cluster.kuberay.api import Manifest
from airflow_provider_raybatch.cluster.kuberay.cluster import KubeRayCluster
from airflow_provider_raybatch.cluster.kuberay.counts import WorkerCounts
from airflow_provider_raybatch.cluster.kuberay.given_spec import (
    GivenSpec,
    check_plain,
    check_shape,
    given_spec,
    ray_version,
    version_of,
)
from airflow_provider_raybatch.cluster.kuberay.pods import (
    SECURITY,
    head_group,
    merged,
    overridden,
    worker_group,
)
from airflow_provider_raybatch.cluster.kuberay.rayjob import (
    FINGERPRINT,
    NUMBER,
    RUN_TOKEN,
    ClusterClaim,
    rayjob_name,
    run_labels,
)
from airflow_provider_raybatch.cluster.kuberay.reach import TOKEN_KEY
from airflow_provider_raybatch.cluster.kuberay.reasons import QUEUE_LABEL
from airflow_provider_raybatch.cluster.submit.resolve import SubmissionKey
from airflow_provider_raybatch.contract.base import seconds_of
from airflow_provider_raybatch.contract.failures import SpecError
from airflow_provider_raybatch.contract.submission import key_of_job

KUEUE_ELASTIC = "kueue.x-k8s.io/elastic-job"

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
    cluster: KubeRayCluster, counts: WorkerCounts, given: GivenSpec | None = None
) -> Manifest:
    """The RayCluster's spec, without authentication, which each RayJob adds.

    :param cluster: rendered and checked.
    :param counts: of no effect on a spec that the cluster gives.
    :param given: of :func:`_given`, read only once.
    :raises SpecError: what the user gave does not make a cluster.
    """
    given = given or _given(cluster)
    may_scale = not _queue(cluster, given) or _is_elastic(cluster, given)
    spec = _made(cluster, counts, may_scale) if cluster.spec is None else _own(cluster, given.spec)
    if cluster.pod_override:
        check_plain(cluster.pod_override, "pod_override")
        overridden(spec, cluster.pod_override)
        check_shape(spec, "pod_override")
    if cluster.patch:
        check_plain(cluster.patch, "patch")
        spec = merged(spec, cluster.patch)
        check_shape(spec, "patch")
    if spec.get("enableInTreeAutoscaling") and not may_scale:
        raise SpecError(
            f"kueue_queue: Kueue admits a cluster with an autoscaler only with the annotation "
            f"{KUEUE_ELASTIC}: 'true'; set it, or enableInTreeAutoscaling to false."
        )
    return spec


def _given(cluster: KubeRayCluster) -> GivenSpec:
    return GivenSpec({}) if cluster.spec is None else given_spec(cluster.spec)


def _own(cluster: KubeRayCluster, spec: Manifest) -> Manifest:
    """The user's own spec, with the image of the arguments in it."""
    spec["rayVersion"] = version_of(spec, cluster.image, cluster.ray_version)
    if cluster.image is not None:
        for group in (spec["headGroupSpec"], *(spec.get("workerGroupSpecs") or ())):
            group["template"]["spec"]["containers"][0]["image"] = cluster.image  # Ray's is the first
    return spec


def _made(cluster: KubeRayCluster, counts: WorkerCounts, may_scale: bool) -> Manifest:
    fewest, most = counts.fewest, counts.most
    fewest = fewest if may_scale else most  # Kueue admits a cluster whole
    groups = [worker_group(cluster, counts.gpus, (fewest, most))] if most else []
    spec: Manifest = {
        "rayVersion": ray_version(cluster.image, cluster.ray_version),
        "headGroupSpec": head_group(cluster),
        "workerGroupSpecs": groups,
    }
    if fewest < most:
        spec |= {"enableInTreeAutoscaling": True, "autoscalerOptions": _AUTOSCALER}
    return spec


def _queue(cluster: KubeRayCluster, given: GivenSpec) -> str | None:
    """Kueue's queue, by argument or by label."""
    labelled = [(labels or {}).get(QUEUE_LABEL) for labels in (cluster.labels, given.labels)]
    queues = list(dict.fromkeys(one for one in (cluster.kueue_queue, *labelled) if one))
    if len(queues) > 1:
        raise SpecError(
            f"kueue_queue: it is {queues[0]!r}, and labels have the queue {queues[1]!r}; keep one."
        )
    return queues[0] if queues else None


def _is_elastic(cluster: KubeRayCluster, given: GivenSpec) -> bool:
    """Whether Kueue's feature of elastic jobs, with which a cluster may have an autoscaler, is asked for."""
    annotations = {**given.annotations, **(cluster.annotations or {})}
    return str(annotations.get(KUEUE_ELASTIC, "")).lower() == "true"


def rayjob_manifest(
    cluster: KubeRayCluster,
    counts: WorkerCounts,
    key: SubmissionKey,
    number: int,
    fingerprint: str,
    *,
    pre_running_deadline: int,
    active_deadline: int,
) -> Manifest:
    """The RayJob that holds a run's cluster.

    :param cluster: rendered and checked.
    :param number: of the run's cluster; its Ray job has the same one.
    :param pre_running_deadline: seconds after which KubeRay ends it if no job has been submitted.
    :param active_deadline: seconds after its start at which KubeRay ends it, until a follower extends them.
    """
    given = _given(cluster)
    spec = ray_cluster_spec(cluster, counts, given)
    name = rayjob_name(key, number)
    # Each Secret has another name, so each cluster has a token of its own.
    spec["authOptions"] = {"mode": "token", "secretName": f"{name}-{secrets.token_hex(4)}"}
    own = _annotations(key, number, fingerprint)
    theirs = {**given.annotations, **(cluster.annotations or {})}
    # One of our names would tell a sweeper what is not so, such as that tasks share the cluster.
    theirs = {name: value for name, value in theirs.items() if not name.startswith("raybatch/")}
    metadata: Manifest = {
        "name": name,
        "labels": {**given.labels, **(cluster.labels or {}), **run_labels(key)},
        "annotations": {**theirs, **own},
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
    if queue := _queue(cluster, given):
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
