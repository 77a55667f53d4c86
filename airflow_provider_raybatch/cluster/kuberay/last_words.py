# SPDX-License-Identifier: Apache-2.0
"""How the pods of a cluster ended: lines for the task's log, and the cause if the head is among them. Pure.

A head pod that has failed is soon deleted by KubeRay, whose event of it then says how it ended.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from airflow_provider_raybatch.cluster.follow.failure_reason import Diagnosis
from airflow_provider_raybatch.cluster.kuberay.pod_states import Container, Ended, Pod, PodEvent, text_of
from airflow_provider_raybatch.contract.failures import FailureClass
from airflow_provider_raybatch.contract.text import count_of, cut_to

_MOST_LINES = 20
_LONGEST_LINE = 700
_STOPPED = frozenset({0, 143})
"""Exit codes of a container that has ended as it was asked to."""
_KILLED = frozenset({137, 143})
_LOW = "low on resource"
"""Of an eviction, in the words of each Kubernetes."""
_SILENT = frozenset({"NodeLost", "Unknown", "ContainerStatusUnknown"})
_NODE_REASONS = re.compile(
    r"NodeLost|NodeShutdown|Shutdown|Terminated|Preempting|NodeAffinity|UnexpectedAdmissionError|.*OutOf.*"
)
"""Reasons in the status of a failed pod whose node did not keep it."""
_POD_EVENTS = frozenset({"Preempted", "TaintManagerEviction", "NodeNotReady", "Evicted", "Disrupted"})
"""Events of pods after which they go."""
_HEAD = re.compile(r"-head(?:-\w+)?$")
_DELETED = re.compile(
    r"Deleted (head|worker) [Pp]od [^/\s]+/([^;\s]+); [Pp]od status: (\w+);.*"
    r"terminated status: (?:nil|&ContainerStateTerminated\{ExitCode:(-?\d+),"
    r".*?Reason:([^,]*),Message:(.*?),StartedAt:)"
)
"""KubeRay's event of a pod that it has deleted."""


@dataclass(frozen=True)
class LastWords:
    """How pods of a cluster ended.

    :param lines: for the log of the task, the head's first, at most 20.
    :param cause: why the cluster gives no answer, if the head's pod has ended; else ``None``.
    """

    lines: tuple[str, ...] = ()
    cause: Diagnosis | None = None


def last_words(pods: Iterable[Pod], events: Sequence[PodEvent] = ()) -> LastWords:
    """How the pods of a cluster ended.

    :param pods: those that still are.
    :param events: of the pods, and of the RayCluster, which tell about pods that are gone.
    """
    there = list(pods)
    ends = _gone(event for event in events if not any(pod.is_meant_by(event) for pod in there))
    ends += [(pod.head, pod.shown, end) for pod in there if (end := pod_end(pod, events)) is not None]
    # A head that runs and is ready answers for itself, whatever happened to one before it.
    cause = None if any(pod.head and pod.ready and not pod.deleting for pod in there) else _cause(there, ends)
    ends.sort(key=lambda one: not one[0])
    lines = [cut_to(_LONGEST_LINE, f"{shown}: {end.message}") for _, shown, end in ends]
    if len(lines) > _MOST_LINES:
        lines[_MOST_LINES - 1 :] = [f"{count_of(len(lines) - _MOST_LINES + 1, 'more pod')} ended."]
    return LastWords(tuple(lines), cause)


def _cause(pods: Sequence[Pod], ends: Sequence[tuple[bool, str, Diagnosis]]) -> Diagnosis | None:
    heads = [(shown, end) for head, shown, end in ends if head]
    if heads:
        shown, end = heads[-1]
        return Diagnosis(end.failure_class, f"The cluster's {shown} has ended: {end.message}")
    if any(pod.head for pod in pods):
        return None
    told = "The cluster's head pod is gone; how it ended is unknown, as when its node is lost."
    return Diagnosis(FailureClass.NODE_LOST, told)


def pod_end(pod: Pod, events: Sequence[PodEvent] = ()) -> Diagnosis | None:
    """How a pod ended, or what takes it away; ``None`` while it runs, or waits to.

    The message begins with Kubernetes' own word where it has one, such as ``OOMKilled``.
    """
    if pod.disrupted is not None and pod.reason != "Evicted":  # the condition says less of that
        return _taken_away(*pod.disrupted)
    if pod.reason == "Evicted" or _NODE_REASONS.fullmatch(pod.reason) or pod.phase == "Unknown":
        return _taken_away(pod.reason or pod.phase, pod.message)
    told_by = [event for event in events if pod.is_meant_by(event) and event.reason in _POD_EVENTS]
    if told_by and (pod.deleting or pod.phase == "Failed"):
        return _taken_away(told_by[-1].reason, told_by[-1].message)
    # A sidecar that ends leaves a pod that runs.
    over = pod.phase in {"Failed", "Succeeded"}
    ended = [
        container_end(one, one.ended) for one in pod.containers if one.ended and (over or one is pod.ray)
    ]
    if not any(ended) and pod.ray is not None and pod.ray.last_ended is not None:
        ended = [container_end(pod.ray, pod.ray.last_ended)]
    if found := next((one for one in ended if one is not None), None):
        return found
    if pod.phase == "Failed" or (pod.head and pod.phase == "Succeeded"):
        return Diagnosis(
            FailureClass.INTERNAL, _joined(f"{pod.phase}: Ray ended without an error", pod.message)
        )
    return None


def _taken_away(reason: str, message: str) -> Diagnosis:
    """By its node, by a drain or by another pod; a node that ran low says of what."""
    failure_class, remedy = FailureClass.NODE_LOST, ""
    evicted = reason == "Evicted" or _LOW in message
    if evicted and "memory" in message:
        failure_class, remedy = FailureClass.OUT_OF_MEMORY, "give it more memory"
    elif evicted and re.search("storage|inodes|disk", message):
        failure_class, remedy = FailureClass.STORAGE, "give it more ephemeral-storage"
    if reason in _SILENT:
        message = message or "its node does not answer"
    told = f"{reason}: {message.rstrip('.')}" if message else reason
    return Diagnosis(failure_class, _joined(told, "", remedy))


def container_end(container: Container, ended: Ended | None) -> Diagnosis | None:
    """How a container ended; ``None`` if it has not, or as it was asked to."""
    if ended is None or (ended.exit_code in _STOPPED and ended.reason != "OOMKilled"):
        return None
    name, said = f"container {container.name}", ended.message
    if ended.reason == "OOMKilled":
        limit = f" of {container.memory}" if container.memory else ""
        told = f"OOMKilled: {name} exceeded its memory limit{limit}"
        return Diagnosis(FailureClass.OUT_OF_MEMORY, _joined(told, said, "give it more memory"))
    if ended.reason == "ContainerStatusUnknown":
        return _taken_away(ended.reason, said)
    told = _joined(f"{ended.reason or 'Error'}: {name} ended with exit code {ended.exit_code}", said)
    if ended.exit_code == 127 or "command not found" in said:
        return Diagnosis(FailureClass.USER_ERROR, f"{told.rstrip('.')}; use an image that has Ray.")
    if "Version mismatch" in said:
        remedy = "use one image for head and workers"
        return Diagnosis(FailureClass.USER_ERROR, f"{told.rstrip('.')}; {remedy}.")
    return Diagnosis(FailureClass.INTERNAL, told)


def _gone(events: Iterable[PodEvent]) -> list[tuple[bool, str, Diagnosis]]:
    """Of pods that KubeRay has deleted after their end, and of those that an event says went."""
    found: dict[str, tuple[bool, str, Diagnosis]] = {}
    explained = set()
    for event in events:
        if event.kind == "Pod" and (event.reason in _POD_EVENTS or _NODE_REASONS.fullmatch(event.reason)):
            head = _HEAD.search(event.name) is not None
            role = "head" if head else "worker"
            found[event.name] = head, f"{role} pod {event.name}", _taken_away(event.reason, event.message)
            explained.add(event.name)
        elif told := _DELETED.search(event.message):
            role, name, phase, code, reason, message = told.groups()
            if name in explained:
                explained.remove(name)  # a new head has the name of the last one
                continue
            container = Container(f"ray-{role}", "", "", "", None, None, "")
            if code is None:
                end: Diagnosis | None = _taken_away(phase, "ended without its container, as by its node")
            else:
                end = _deleted_end(container, Ended(reason, int(code), text_of(message)))
            if end is not None:
                found[name] = role == "head", f"{role} pod {name}", end
    return list(found.values())


def gone_head(events: Iterable[PodEvent]) -> tuple[str, Diagnosis] | None:
    """Name and end of the latest head pod that KubeRay has deleted after its end, ``None`` without one."""
    heads = [(shown, end) for head, shown, end in _gone(events) if head]
    return heads[-1] if heads else None


def _deleted_end(container: Container, ended: Ended) -> Diagnosis | None:
    """How a pod ended that KubeRay has deleted since; its own status, which said more, is gone."""
    if ended.exit_code in _KILLED and ended.reason != "OOMKilled":
        told = f"killed from outside (exit code {ended.exit_code}), as when its node goes away"
        return Diagnosis(FailureClass.NODE_LOST, _joined(told, ended.message))
    return container_end(container, ended)


def _joined(told: str, message: str, remedy: str = "") -> str:
    said = f"{told} ({message.rstrip('.')})" if message else told
    return f"{said}; {remedy}." if remedy else f"{said}."
