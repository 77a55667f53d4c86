# SPDX-License-Identifier: Apache-2.0
"""Why KubeRay can't create a cluster or its pods: what the API server answered it. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from airflow_provider_raybatch.cluster.kuberay.pod_states import PodEvent, text_of
from airflow_provider_raybatch.cluster.kuberay.reasons import Reason
from airflow_provider_raybatch.contract.failures import FailureClass

_USER = FailureClass.USER_ERROR
_WHAT = {
    "FailedToCreateRayCluster": "KubeRay can't create the RayCluster",
    "FailedToCreateHeadPod": "KubeRay can't create the head pod",
    "FailedToCreateWorkerPod": "KubeRay can't create a worker pod",
    "FailedCreateHeadPod": "KubeRay can't create the head pod",
    "FailedCreateWorkerPod": "KubeRay can't create a worker pod",
    "FailedToCreateService": "KubeRay can't create the head's Service",
    "FailedToCreateServiceAccount": "KubeRay can't create the autoscaler's service account",
    "FailedToCreateRole": "KubeRay can't create the autoscaler's Role",
    "FailedToCreateRoleBinding": "KubeRay can't create the autoscaler's RoleBinding",
    "FailedToCreatePVC": "KubeRay can't create a PersistentVolumeClaim",
    "FailedCreate": "Kubernetes can't create a pod",
    "AutoscalerServiceAccountNotFound": "KubeRay can't create the head pod",
    "InvalidRayClusterSpec": "KubeRay refuses the RayCluster",
    "InvalidRayClusterMetadata": "KubeRay refuses the RayCluster",
    "InvalidRayJobSpec": "KubeRay refuses the RayJob",
    "InvalidRayJobMetadata": "KubeRay refuses the RayJob",
}
"""Reasons of events and of the condition `ReplicaFailure`."""
_SUCCEEDED = frozenset({"CreatedHeadPod", "CreatedRayCluster", "CreatedWorkerPod"})
_LATER = re.compile(
    r"failed calling webhook|[Tt]imed? ?out|deadline exceeded|connection (?:refused|reset)|try again|"
    r"already exists|object has been modified|[Uu]navailable|etcdserver|being terminated"
)
_NO_ACCOUNT = re.compile(r'serviceaccount "([^"]+)" not found|[Ss]ervice ?[Aa]ccount (\S+) (?:is )?not found')
_DENIED = re.compile(r'admission webhook "([^"]+)" denied the request:? ?(.*)')
_QUOTA = re.compile(r"exceeded quota: .*")


def refusal(what: str, message: str) -> Reason:
    """What follows from a refusal of the API server or of KubeRay.

    :param what: reason of the event or condition.
    """
    told = _WHAT.get(what, "KubeRay can't create the cluster")
    said = message.removeprefix(what).strip().rstrip(".")  # KubeRay's condition repeats its reason
    if found := _QUOTA.search(said):
        text = f"{told}: a ResourceQuota of the namespace has no room ({found[0]})"
        return Reason(f"quota {what}", text, "ask for less, or have the quota raised")
    if found := _NO_ACCOUNT.search(said):
        name = found[1] or found[2]
        text = f"{told}: the service account {name!r} does not exist"
        return Reason(f"account {name}", text, "create it, or correct serviceAccountName", _USER)
    if found := _DENIED.search(said):
        text = f"{told}: the admission webhook {found[1]!r} denies it: {found[2] or 'without a reason'}"
        return Reason(f"webhook {said}", text, "correct ray_cluster, or the webhook's policy", _USER)
    if _LATER.search(said):
        return Reason(f"later {what}", f"{told} yet, and tries again: {said}", "look at KubeRay's operator")
    if what.startswith("InvalidRay"):
        return Reason(f"invalid {said}", f"{told}: {said}", "correct ray_cluster", _USER)
    hopeless = (
        _USER
        if re.search(r"is forbidden|is invalid|violates PodSecurity", said) or "NotFound" in what
        else None
    )
    return Reason(f"{what} {said}", f"{told}: {said}", "correct ray_cluster, or what forbids it", hopeless)


def creation_failure(cluster: Mapping[str, Any] | None, events: Sequence[PodEvent]) -> Reason | None:
    """Why pods of a cluster could not be created; ``None`` if the last try succeeded or there was none.

    :param events: of the RayJob and the RayCluster, the oldest first.
    """
    told = [event for event in events if event.reason in _WHAT or event.reason in _SUCCEEDED]
    for condition in ((cluster or {}).get("status") or {}).get("conditions") or ():
        fails = condition.get("type") == "ReplicaFailure" and condition.get("status") == "True"
        if fails and condition.get("reason") in _WHAT:
            return refusal(condition["reason"], text_of(condition.get("message")))
    if not told or told[-1].reason in _SUCCEEDED:
        return None
    return refusal(told[-1].reason, told[-1].message)
