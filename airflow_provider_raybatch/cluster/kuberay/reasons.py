# SPDX-License-Identifier: Apache-2.0
"""Why a part of a cluster is not there yet: what refuses it, or why Kueue does not admit it. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_provider_raybatch.cluster.kuberay.pod_states import PodEvent, text_of
from airflow_provider_raybatch.contract.failures import FailureClass


@dataclass(frozen=True)
class Reason:
    """Why something waits, or can't come.

    :param key: equal keys of one object are one reason, which is told once.
    :param text: follows the name of what waits, after a colon.
    :param remedy: follows the sentence if the wait ends in a failure.
    :param hopeless: the failure class if it can't come; ``None`` if it may.
    """

    key: str
    text: str
    remedy: str = ""
    hopeless: FailureClass | None = None

    def sentence(self, of: str) -> str:
        """The whole sentence about `of`, with the remedy."""
        told = f"{of}: {self.text}".rstrip(".")
        return f"{told}; {self.remedy}." if self.remedy else f"{told}."


_USER = FailureClass.USER_ERROR
_FAILED = re.compile(
    r"Failed(?:To)?Create(?P<thing>|HeadPod|WorkerPod|RayCluster|Service|ServiceAccount|Role|RoleBinding|PVC)"
    r"|AutoscalerServiceAccountNotFound|InvalidRay(?P<refused>Cluster|Job)\w+"
)
"""Reasons of events and of the condition `ReplicaFailure`."""
_THINGS = {"": "a pod", None: "the head pod", "HeadPod": "the head pod", "WorkerPod": "a worker pod"}
"""What could not be created, where KubeRay's word for it is not enough."""
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
    failed = _FAILED.fullmatch(what)
    assert failed is not None
    thing, refused = failed["thing"], failed["refused"]
    told = f"KubeRay can't create {_THINGS.get(thing, thing)}"
    if refused:
        told = f"KubeRay refuses the Ray{refused}"
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
    if refused:
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
    told = [event for event in events if _FAILED.fullmatch(event.reason) or event.reason in _SUCCEEDED]
    for condition in ((cluster or {}).get("status") or {}).get("conditions") or ():
        fails = condition.get("type") == "ReplicaFailure" and condition.get("status") == "True"
        if fails and _FAILED.fullmatch(condition.get("reason") or ""):
            return refusal(condition["reason"], text_of(condition.get("message")))
    if not told or told[-1].reason in _SUCCEEDED:
        return None
    return refusal(told[-1].reason, told[-1].message)


QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
JOB_LABEL = "kueue.x-k8s.io/job-uid"
"""Label of a Workload: the `uid` of the RayJob that it stands for."""

CREATED = "CreatedWorkload"
"""Reason of Kueue's event of a RayJob for which it has made a Workload."""
_TAKEN_UP = 60.0
"""Seconds after which Kueue should have made a Workload."""
_NO_QUEUE = re.compile(r"(?:LocalQueue|ClusterQueue) (\S*) ?doesn't exist")
_HOPELESS = frozenset({"ExceedsMaxQuota", "NoMatchingFlavor"})
"""Reasons of a Workload that the queue can't admit, however empty it is."""
_TOO_LARGE = re.compile(r"> maximum capacity \(")
_MAY_FIT = "insufficient unused quota"
"""Kueue's words for a flavor that is large enough, but in use."""


def admission(
    rayjob: Mapping[str, Any],
    workloads: Sequence[Mapping[str, Any]] | None,
    events: Sequence[PodEvent],
    age: float = 0.0,
) -> Reason:
    """Why a suspended RayJob waits.

    :param workloads: of the RayJob; ``None`` if they could not be read.
    :param events: of the RayJob and of its Workload, the oldest first.
    :param age: seconds since the RayJob was created.
    """
    queue = ((rayjob.get("metadata") or {}).get("labels") or {}).get(QUEUE_LABEL) or ""
    if not queue:
        return Reason("suspended", "is suspended (spec.suspend), and starts once that is undone")
    why, told = _of_workload(workloads) if workloads else ("", "")
    latest = [one for one in events if one.kind == "Workload" or one.reason in {"Stopped", "Suspended"}]
    if not told and latest:
        why, told = latest[-1].reason, latest[-1].message
    where = f"waits for Kueue to admit it from the queue {queue!r}"
    if not told and not workloads and age > _TAKEN_UP and not any(one.reason == CREATED for one in events):
        text = f"{where}, and Kueue has not taken it up"
        remedy = "look whether Kueue is installed, and its configuration lists the integration ray.io/rayjob"
        return Reason("no Kueue", text, remedy)
    if not told:
        remedy = f"look whether a LocalQueue {queue!r} exists in the namespace (kueue_queue), and has quota"
        return Reason("queue", where, remedy)
    if _NO_QUEUE.search(told):
        text = f"can't be admitted by Kueue: {told.rstrip('.')}"
        return Reason(
            told, text, "correct kueue_queue, or create the queue in the namespace", FailureClass.USER_ERROR
        )
    remedy = "ask for less, or have the queue's quota raised"
    if why in _HOPELESS or (_TOO_LARGE.search(told) and _MAY_FIT not in told):
        text = f"can never be admitted by Kueue from the queue {queue!r}: {told.rstrip('.')}"
        return Reason(told, text, remedy, FailureClass.USER_ERROR)
    return Reason(told, f"{where}: {told.rstrip('.')}", remedy)


def _of_workload(workloads: Sequence[Mapping[str, Any]]) -> tuple[str, str]:
    """Kueue's reason and message."""
    status = workloads[-1].get("status") or {}
    for check in status.get("admissionChecks") or ():
        if check.get("state") in {"Pending", "Retry", "Rejected"} and check.get("message"):
            return "", text_of(f"{check.get('name')}: {check['message']}")
    for condition in status.get("conditions") or ():
        if condition.get("type") == "QuotaReserved" and condition.get("status") == "False":
            return str(condition.get("reason") or ""), text_of(condition.get("message"))
    return "", ""
