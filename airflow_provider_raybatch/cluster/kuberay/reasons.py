# SPDX-License-Identifier: Apache-2.0
"""Why a part of a cluster is not there yet, in Kubernetes' own words, and whether it ever can be. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_provider_raybatch.cluster.follow.failure_reason import Diagnosis
from airflow_provider_raybatch.cluster.kuberay.last_words import container_end, pod_end
from airflow_provider_raybatch.cluster.kuberay.pod_states import Container, Pod, PodEvent, text_of
from airflow_provider_raybatch.cluster.kuberay.role import ROLE_FILE
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
_LATER = re.compile(
    r"toomanyrequests|[Tt]oo [Mm]any [Rr]equests|rate limit|[Tt]imed? ?out|deadline exceeded|is reserved for|"
    r"connection (?:refused|reset)|no such host|[Tt]emporary failure|server misbehaving|handshake|try again|"
    r"unexpected EOF|[Uu]navailable|no space left|\b50[0234]\b"
)
"""Of a registry or a node that does not answer or has no room now; Kubernetes tries again."""
_TRIED_AGAIN = re.compile(
    r"failed calling webhook|[Tt]imed? ?out|deadline exceeded|connection (?:refused|reset)|try again|"
    r"already exists|object has been modified|[Uu]navailable|etcdserver|being terminated|exceeded quota"
)
"""Of the API server, which KubeRay asks again."""

_NOT_CREATED = re.compile(
    r"Failed(?:To)?Create(?:\w*Pod|RayCluster|Service|ServiceAccount|Role|RoleBinding|PVC)?"
    r"|AutoscalerServiceAccountNotFound|InvalidRay(?:Cluster|Job)\w+"
)
"""Reasons of events and of the condition `ReplicaFailure`."""
_CREATED = frozenset({"CreatedHeadPod", "CreatedRayCluster", "CreatedWorkerPod"})
_REFUSED = re.compile(r"is forbidden|is invalid|denied the request|not ?found|InvalidRay", re.IGNORECASE)


def creation_failure(cluster: Mapping[str, Any] | None, events: Sequence[PodEvent]) -> Reason | None:
    """Why pods of a cluster could not be created; ``None`` if the last try succeeded or there was none.

    :param events: of the RayJob and the RayCluster, the oldest first.
    """
    for condition in ((cluster or {}).get("status") or {}).get("conditions") or ():
        fails = condition.get("type") == "ReplicaFailure" and condition.get("status") == "True"
        if fails and _NOT_CREATED.fullmatch(condition.get("reason") or ""):
            return _refusal(condition["reason"], text_of(condition.get("message")))
    told = [event for event in events if _NOT_CREATED.fullmatch(event.reason) or event.reason in _CREATED]
    if not told or told[-1].reason in _CREATED:
        return None
    return _refusal(told[-1].reason, told[-1].message)


def _refusal(what: str, message: str) -> Reason:
    """What follows from a refusal of the API server or of KubeRay."""
    said = message.removeprefix(what).strip()  # KubeRay's condition repeats its reason
    what = what.replace("FailedTo", "Failed")  # one word for what event and condition tell
    may_come = _TRIED_AGAIN.search(said) and "denied the request" not in said
    hopeless = _USER if _REFUSED.search(f"{what} {said}") and not may_come else None
    remedy = "correct ray_cluster, or have what forbids it changed"
    return Reason(what, f"{what}: {said}", remedy, hopeless)


QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
JOB_LABEL = "kueue.x-k8s.io/job-uid"
"""Label of a Workload: the `uid` of the RayJob that it stands for."""

_NO_QUEUE = re.compile(r"(?:LocalQueue|ClusterQueue) (\S*) ?doesn't exist")
_NEVER = frozenset({"ExceedsMaxQuota", "NoMatchingFlavor"})
"""Reasons of a Workload that the queue can't admit, however empty it is."""
_TOO_LARGE = "> maximum capacity ("
_MAY_FIT = "insufficient unused quota"
"""Kueue's words for a flavor that is large enough, but in use."""


def admission(rayjob: Mapping[str, Any], workloads: Sequence[Mapping[str, Any]] | None) -> Reason:
    """Why a suspended RayJob waits.

    :param workloads: of the RayJob; ``None`` if they could not be read.
    """
    queue = ((rayjob.get("metadata") or {}).get("labels") or {}).get(QUEUE_LABEL) or ""
    if not queue:
        return Reason("suspended", "is suspended (spec.suspend), and starts once that is undone")
    where = f"waits for Kueue to admit it from the queue {queue!r}"
    if workloads is None:
        return Reason("unread", f"{where}; its Workload, which says why, can't be read; see {ROLE_FILE}")
    why, told = _of_workload(workloads[-1].get("status") or {}) if workloads else ("", "")
    if not told:
        remedy = (
            f"look whether the namespace has a LocalQueue {queue!r} (kueue_queue) with quota, and Kueue's "
            "configuration lists the integration ray.io/rayjob"
        )
        return Reason("queue", where, remedy)
    never = why in _NEVER or _NO_QUEUE.search(told) or (_TOO_LARGE in told and _MAY_FIT not in told)
    if never:
        where = f"can't be admitted by Kueue from the queue {queue!r}"
    remedy = "correct kueue_queue, ask for less, or have the queue's quota raised"
    return Reason(told, f"{where}: {told}", remedy, _USER if never else None)


def _of_workload(status: Mapping[str, Any]) -> tuple[str, str]:
    """Kueue's reason and message."""
    for check in status.get("admissionChecks") or ():
        if check.get("state") in {"Pending", "Retry", "Rejected"} and check.get("message"):
            return "", text_of(f"{check.get('name')}: {check['message']}")
    for condition in status.get("conditions") or ():
        if condition.get("type") == "QuotaReserved" and condition.get("status") == "False":
            return str(condition.get("reason") or ""), text_of(condition.get("message"))
    return "", ""


_REMEDIES = {
    "ImagePullBackOff": "correct image, or the registry's login in imagePullSecrets of pod_override",
    **dict.fromkeys(
        ("InvalidImageName", "ErrImageNeverPull", "SignatureValidationFailed", "ImageInspectError"),
        "correct image",
    ),
    "CreateContainerConfigError": "create what is missing, or correct env and volumes",
    **dict.fromkeys(
        ("RunContainerError", "StartError", "ContainerCannotRun", "CreateContainerError"),
        "use an image for the nodes' architecture that has Ray and bash",
    ),
}
"""Of a container that can't start, by Kubernetes' word for its state."""
_FIRST_PULLS = frozenset({"ErrImagePull", "RegistryUnavailable"})
"""A first error may be of the moment: only the back-off after it ends the wait."""
_NO_VOLUME = re.compile("(?:secret|configmap|persistentvolumeclaim) .*not found")
_KARPENTER = "Failed to schedule pod, "
"""Begins Karpenter's refusals; their reason is that of the scheduler's own."""
_PREEMPTION = re.compile(r"[.,]?\s*(?:no new claims to deallocate|[Pp]reemption:).*$")
"""The end of the scheduler's message, which begins alike each time."""


def pod_reason(pod: Pod, events: Sequence[PodEvent], own_secret: str = "") -> Reason | None:
    """Why a pod is not ready; ``None`` if it is, or has been deleted.

    :param events: of this pod and others, the oldest first.
    :param own_secret: the Secret of the cluster's token, made after the RayJob, so a pod may wait for it.
    """
    if pod.ready or pod.deleting:
        return None
    of_pod = [event for event in events if pod.is_meant_by(event)]
    if pod.phase != "Failed" and not pod.node and not any(one.waiting or one.ended for one in pod.containers):
        return _without_node(pod, of_pod)
    for container in pod.containers:
        if own_secret and own_secret in container.message:
            return Reason("own secret", f"waits for the Secret {own_secret} of its token")
        if (reason := _of_container(container, of_pod)) is not None:
            return reason
    if end := pod_end(pod, events):
        return ended_reason(end)
    last = of_pod[-1] if of_pod else None
    if pod.phase == "Running" and (last is None or last.reason != "Unhealthy"):
        return Reason("starting Ray", "runs, and Ray starts on it")
    text = f"is on node {pod.node}"
    if last is None:
        return Reason("node", text)
    missing = _USER if _NO_VOLUME.search(last.message) else None
    return Reason(last.reason, f"{text}: {last.reason}: {last.message}", "correct volumes", missing)


def ended_reason(end: Diagnosis) -> Reason:
    """Why a cluster waits whose pod has ended."""
    hopeless = end.failure_class if end.failure_class in {_USER, FailureClass.OUT_OF_MEMORY} else None
    return Reason(f"ended {end.message}", f"has ended: {end.message.rstrip('.')}", "", hopeless)


def _without_node(pod: Pod, events: Sequence[PodEvent]) -> Reason:
    state, message = pod.unscheduled or ("", "")
    text = f"waits for a node: {_PREEMPTION.sub('', message).rstrip('.') or state or 'nothing is known yet'}"
    if _NO_VOLUME.search(message):
        return Reason(text, text, "create it, or correct volumes", _USER)
    told = [one for one in events if one.reason != "FailedScheduling" or one.message.startswith(_KARPENTER)]
    if told:
        text = f"{text}; {told[-1].reason}: {told[-1].message}"
    return Reason(text, text, "add nodes, ask for less, or correct node_selector and tolerations")


def _of_container(container: Container, events: Sequence[PodEvent]) -> Reason | None:
    state, message = container.waiting, container.message
    if state == "CrashLoopBackOff":
        end = container_end(container, container.last_ended) or Diagnosis(FailureClass.INTERNAL, message)
        return Reason("crash", f"crashes again and again: {end.message}", "", end.failure_class)
    if not state and container.ended is not None:
        state, message = container.ended.reason, container.ended.message
    if state == "ImagePullBackOff" and ": " not in message.removeprefix("rpc error: "):
        # The first error is followed by a back-off, which has the cause in the pod's events.
        told = [one.message for one in events if one.reason == "Failed" and container.image in one.message]
        message = told[-1] if told else message
    if state not in _REMEDIES and state not in _FIRST_PULLS:
        return None
    text = f"can't start container {container.name} of image {container.image}: {state}: {message}"
    if state in _FIRST_PULLS or _LATER.search(message):
        return Reason(f"later {container.image}", text, "look at its registry and its node")
    return Reason(state, text, _REMEDIES[state], _USER)
