# SPDX-License-Identifier: Apache-2.0
"""What states of pods, clusters and queues mean: one table of verdicts. Pure.

A state and the latest event are shown in Kubernetes' own words. The first row that fits them says which
failure it is and what to do; a cluster whose failure a retry can't mend is given up at once.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_provider_raybatch.cluster.follow.failure_reason import Diagnosis
from airflow_provider_raybatch.contract.failures import FailureClass
from airflow_provider_raybatch.contract.text import count_of, cut_to
from airflow_provider_raybatch.kubernetes.api.errors import ROLE_FILE
from airflow_provider_raybatch.kubernetes.kuberay.pod_states import Pod, PodEvent, text_of, worded

QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
JOB_LABEL = "kueue.x-k8s.io/job-uid"
"""Label of a Workload: the `uid` of the RayJob that it stands for."""

_USER, _MEMORY, _NODE = FailureClass.USER_ERROR, FailureClass.OUT_OF_MEMORY, FailureClass.NODE_LOST
_HOPELESS = frozenset({_USER, _MEMORY})
_ARCHITECTURE = "use an image for the nodes' architecture that has Ray and bash"
_CORRECT = "correct ray_cluster, or have what forbids it changed"

_TABLE: tuple[tuple[str, FailureClass | None, str], ...] = (
    ("denied the request", _USER, _CORRECT),
    (r"ExceedsMaxQuota|NoMatchingFlavor|(?:Local|Cluster)Queue \S* ?doesn't exist"
     r"|^(?!.*insufficient unused quota).*> maximum capacity \(", _USER,
     "correct kueue_queue, ask for less, or have the queue's quota raised"),
    ("OOMKilled|low on resource: memory|^Evicted.*memory", _MEMORY, "give it more memory"),
    ("(?:low on resource|^Evicted).*(?:storage|inodes|disk)", FailureClass.STORAGE,
     "give it more ephemeral-storage"),
    ("^(?:Preempt|Evict|Deletion|Termination|TaintManager|Disrupted|Node|Shutdown|Terminated|Unknown|OutOf"
     "|ContainerStatusUnknown|UnexpectedAdmissionError)|terminated status: nil", _NODE, ""),
    ("command not found|[Ee]xit ?[Cc]ode:? ?127", _USER, "use an image that has Ray"),
    ("Version mismatch", _USER, "use one image for head and workers"),
    (r"^can't start container \S+ of image \S+: (?:ErrImagePull|RegistryUnavailable)"
     r"|toomanyrequests|[Tt]oo [Mm]any [Rr]equests|rate limit|[Tt]imed? ?out|deadline exceeded|try again"
     r"|is reserved for|connection (?:refused|reset)|no such host|[Tt]emporary failure|server misbehaving"
     r"|handshake|unexpected EOF|[Uu]navailable|no space left|\b50[0234] [A-Z]|failed calling webhook"
     r"|already exists|has been modified|etcdserver|being terminated|exceeded quota", None,
     "look at its registry, its node and quota"),
    ("is forbidden|is invalid|InvalidRay", _USER, _CORRECT),
    ("(?i)(?:secret|configmap|persistentvolumeclaim|serviceaccount).*not ?found", _USER,
     "create it, or correct what names it"),
    (": ImagePullBackOff", _USER,
     "correct image, or the registry's login in imagePullSecrets of pod_override"),
    (": (?:InvalidImageName|ErrImageNeverPull|SignatureValidationFailed|ImageInspectError)", _USER,
     "correct image"),
    (": CreateContainerConfigError", _USER, "create what is missing, or correct env and volumes"),
    ("(?:^|: )(?:RunContainerError|StartError|ContainerCannotRun|CreateContainerError)", _USER,
     _ARCHITECTURE),
    (r"[Ee]xit ?[Cc]ode:? ?(?:137|143)\b", _NODE, "see whether its node went away"),
    ("^waits for a node", None, "add nodes, ask for less, or correct node_selector and tolerations"),
)  # fmt: skip
"""A pattern of the words, the failure class, and the remedy; without a class, Kubernetes tries again."""


def _verdict(words: str, *, ended: bool = False) -> tuple[FailureClass | None, str]:
    """The failure class and the remedy of a state.

    :param ended: whether nothing tries again, so that rows without a class don't count.
    """
    for pattern, failure_class, remedy in _TABLE:
        if (failure_class or not ended) and re.search(pattern, words):
            return failure_class, remedy
    return None, ""


@dataclass(frozen=True)
class Reason:
    """Why something waits, or can't come.

    :param key: equal keys of one object are one reason, which is shown once.
    :param text: follows the name of what waits, after a colon.
    :param remedy: follows the sentence if the wait ends in a failure.
    :param hopeless: the failure class if it can't come; ``None`` if it may.
    """

    key: str
    text: str
    remedy: str = ""
    hopeless: FailureClass | None = None

    @classmethod
    def judged(cls, text: str, words: str | None = None, key: str = "") -> Reason:
        """With the verdict of the table.

        :param words: what is judged; by default all of `text`.
        """
        failure_class, remedy = _verdict(text if words is None else words)
        return cls(key or text, text, remedy, failure_class if failure_class in _HOPELESS else None)

    def sentence(self, of: str) -> str:
        """The whole sentence about `of`, with the remedy."""
        return _sentence(f"{of}: {self.text}", self.remedy)


def _sentence(text: str, remedy: str) -> str:
    return f"{text.rstrip('.')}; {remedy}." if remedy else f"{text.rstrip('.')}."


@dataclass(frozen=True)
class PodExit:
    """How a pod ended.

    :param shown: its name with its role, for people.
    """

    shown: str
    head: bool
    end: Diagnosis

    @classmethod
    def of(cls, shown: str, head: bool, words: str) -> PodExit:
        """With the verdict of the table on Kubernetes' words."""
        failure_class, remedy = _verdict(words, ended=True)
        return cls(shown, head, Diagnosis(failure_class or FailureClass.INTERNAL, _sentence(words, remedy)))

    @property
    def reason(self) -> Reason:
        """Why a cluster waits whose pod has ended so."""
        hopeless = self.end.failure_class if self.end.failure_class in _HOPELESS else None
        return Reason(f"ended {self.end.message}", f"has ended: {self.end.message}", "", hopeless)


_MOST_LINES = 20
_LONGEST_LINE = 700
_HEAD = re.compile(r"-head(?:-\w+)?$")
_DELETED = re.compile(
    r"Deleted (head|worker) [Pp]od [^/\s]+/([^;\s]+); ([Pp]od status: .*?)(?:,StartedAt:.*)?$"
)
"""KubeRay's event of a pod that it has deleted; a head that has failed is soon deleted."""
_STOPPED = re.compile("[Pp]od status: (?:Running|Succeeded)|ExitCode:0,")


def pod_exit(pod: Pod, events: Sequence[PodEvent] = ()) -> PodExit | None:
    """How a pod ended, or what takes it away; ``None`` while it runs, or waits to."""
    goes = pod.deleting or pod.ended
    told = [event.text for event in events if goes and pod.is_meant_by(event) and _takes_away(event)]
    words = told[-1] if told else pod.state if pod.ended else ""
    return PodExit.of(pod.shown, pod.head, words) if words else None


def _takes_away(event: PodEvent) -> bool:
    return event.kind == "Pod" and _verdict(event.reason)[0] is _NODE


@dataclass(frozen=True)
class PodExits:
    """How pods of a cluster ended.

    :param lines: for the log of the task, the head's first, at most 20.
    :param cause: why the cluster gives no answer, if the head's pod has ended; else ``None``.
    """

    lines: tuple[str, ...] = ()
    cause: Diagnosis | None = None


def pod_exits(pods: Sequence[Pod], events: Sequence[PodEvent] = ()) -> PodExits:
    """How the pods of a cluster ended.

    :param pods: those that still are.
    :param events: of the pods, and of the RayCluster, which tell about pods that are gone.
    """
    ends = _exits_of_gone(event for event in events if not any(pod.is_meant_by(event) for pod in pods))
    ends += [end for pod in pods if (end := pod_exit(pod, events)) is not None]
    heads = [end for end in ends if end.head]
    cause = None
    # A head that runs and is ready answers for itself, whatever happened to one before it.
    if not any(pod.head and pod.ready and not pod.deleting for pod in pods):
        if heads:
            message = f"The cluster's {heads[-1].shown} has ended: {heads[-1].end.message}"
            cause = Diagnosis(heads[-1].end.failure_class, message)
        elif not any(pod.head for pod in pods):
            gone = "The cluster's head pod is gone; how it ended is unknown, as when its node is lost."
            cause = Diagnosis(_NODE, gone)
    ends.sort(key=lambda end: not end.head)
    lines = [cut_to(f"{end.shown}: {end.end.message}", _LONGEST_LINE) for end in ends]
    if len(lines) > _MOST_LINES:
        lines[_MOST_LINES - 1 :] = [f"{count_of(len(lines) - _MOST_LINES + 1, 'more pod')} ended."]
    return PodExits(tuple(lines), cause)


def _exits_of_gone(events: Iterable[PodEvent]) -> list[PodExit]:
    """Of pods that KubeRay has deleted after their end, and of those that an event says went."""
    found: dict[str, PodExit] = {}
    for event in events:
        if _takes_away(event):
            head = _HEAD.search(event.name) is not None
            shown = f"{'head' if head else 'worker'} pod {event.name}"
            found[event.name] = PodExit.of(shown, head, event.text)
        elif (told := _DELETED.search(event.message)) and not _STOPPED.search(told[3]):
            role, name, status = told.groups()
            found[name] = PodExit.of(f"{role} pod {name}", role == "head", status)
    return list(found.values())


def latest_head_exit(pods: Iterable[Pod], events: Sequence[PodEvent]) -> PodExit | None:
    """The end of the latest head pod that has ended, as its own status or KubeRay's event says."""
    ended = [end for pod in pods if pod.head and (end := pod_exit(pod, events)) is not None]
    gone = [end for end in _exits_of_gone(events) if end.head]
    return next(iter([*ended[:1], *gone[-1:]]), None)


_KARPENTER = "Failed to schedule pod, "
"""Begins Karpenter's refusals; their reason is that of the scheduler's own, which the pod's state has."""


def pod_reason(pod: Pod, events: Sequence[PodEvent], own_secret: str = "") -> Reason | None:
    """Why a pod is not ready; ``None`` if it is, or has been deleted.

    :param events: of this pod and others, the oldest first.
    :param own_secret: the Secret of the cluster's token, made after the RayJob, so a pod may wait for it.
    """
    if pod.ready or pod.deleting:
        return None
    if (end := pod_exit(pod, events)) is not None:
        return end.reason
    if own_secret and own_secret in pod.state:
        return Reason("own secret", f"waits for the Secret {own_secret} of its token")
    told = [
        event
        for event in events
        if pod.is_meant_by(event)
        and (event.reason != "FailedScheduling" or event.message.startswith(_KARPENTER))
    ]
    text, words, key = pod.state, pod.state, ""
    if text.startswith("can't start"):
        # A back-off may come without its cause, and each try of a registry may tell of another port.
        causes = [event.message for event in told if event.reason == "Failed"]
        text = words = "; ".join([text, *causes[-1:]])
        key = text.partition(": ")[0]
    elif told and (not text.startswith("runs") or told[-1].reason == "Unhealthy"):
        text = f"{text}; {told[-1].text}"
        words = text if pod.node else words  # the scheduler's word counts
    found = Reason.judged(text, words)
    return Reason(key, text, found.remedy) if key and not found.hopeless else found


_NOT_CREATED = re.compile(
    r"Failed(?:To)?Create(?:\w*Pod|RayCluster|Service|ServiceAccount|Role|RoleBinding|PVC)?"
    r"|AutoscalerServiceAccountNotFound|InvalidRay(?:Cluster|Job)\w+"
)
"""Reasons of events and of the condition `ReplicaFailure`."""
_CREATED = frozenset({"CreatedHeadPod", "CreatedRayCluster", "CreatedWorkerPod"})


def creation_failure(cluster: Mapping[str, Any] | None, events: Sequence[PodEvent]) -> Reason | None:
    """Why pods of a cluster could not be created; ``None`` if the last try succeeded or there was none.

    :param events: of the RayJob and the RayCluster, the oldest first.
    """
    for condition in ((cluster or {}).get("status") or {}).get("conditions") or ():
        reason = condition.get("reason") or ""
        fails = condition.get("type") == "ReplicaFailure" and condition.get("status") == "True"
        if fails and _NOT_CREATED.fullmatch(reason):
            return _refusal(reason, text_of(condition.get("message")))
    told = [event for event in events if _NOT_CREATED.fullmatch(event.reason) or event.reason in _CREATED]
    if not told or told[-1].reason in _CREATED:
        return None
    return _refusal(told[-1].reason, told[-1].message)


def _refusal(what: str, message: str) -> Reason:
    """What follows from a refusal of the API server or of KubeRay."""
    said = message.removeprefix(what).strip()  # KubeRay's condition repeats its reason
    what = what.replace("FailedTo", "Failed")  # one word for what event and condition tell
    return Reason.judged(worded(what, said), key=what)


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
    told = _of_workload(workloads[-1].get("status") or {}) if workloads else ""
    if told:
        return Reason.judged(f"{where}: {told}", told)
    remedy = (
        f"look whether the namespace has a LocalQueue {queue!r} (kueue_queue) with quota, and Kueue's "
        "configuration lists the integration ray.io/rayjob"
    )
    return Reason("queue", where, remedy)


def _of_workload(status: Mapping[str, Any]) -> str:
    """Kueue's reason and message."""
    for check in status.get("admissionChecks") or ():
        if check.get("state") in {"Pending", "Retry", "Rejected"} and check.get("message"):
            return worded(str(check.get("name")), text_of(check["message"]))
    for condition in status.get("conditions") or ():
        if condition.get("type") == "QuotaReserved" and condition.get("status") == "False":
            return worded(str(condition.get("reason") or ""), text_of(condition.get("message")))
    return ""
