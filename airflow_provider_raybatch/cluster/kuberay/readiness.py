# SPDX-License-Identifier: Apache-2.0
"""Decide whether a cluster is ready, may become ready, or can't, and what to say of it. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from airflow_provider_raybatch.cluster.follow.failure_reason import Diagnosis
from airflow_provider_raybatch.cluster.kuberay.api import Manifest
from airflow_provider_raybatch.cluster.kuberay.last_words import gone_head, pod_end
from airflow_provider_raybatch.cluster.kuberay.pod_states import Pod, PodEvent
from airflow_provider_raybatch.cluster.kuberay.rayjob import RayJobState, rayjob_state
from airflow_provider_raybatch.cluster.kuberay.reasons import (
    Reason,
    admission,
    creation_failure,
    ended_reason,
    pod_reason,
)
from airflow_provider_raybatch.contract.failures import FailureClass
from airflow_provider_raybatch.contract.text import count_of

READY = frozenset({"Waiting", "Running"})
"""`jobDeploymentStatus` of a RayJob whose cluster is there."""
_MOST_TOLD = 200
_MOST_FAILED_HEADS = 3
_UNSEEN = 30.0
"""Seconds after which KubeRay should have taken a RayJob up."""
_ENDS = {
    "PreRunningDeadlineExceeded": FailureClass.STALLED,
    "DeadlineExceeded": FailureClass.TIMEOUT,
    "ValidationFailed": FailureClass.USER_ERROR,
    "JobStatusCheckTimeoutExceeded": FailureClass.CLUSTER_UNREACHABLE,
}
_RELEASE = re.compile(r"\d+(?:\.\d+)*")


@dataclass(frozen=True)
class ClusterSeen:
    """All that one look at a cluster saw.

    :param rayjob: ``None`` if there is none any more.
    :param ray_cluster: ``None`` before KubeRay has made it.
    :param events: of the RayJob, the RayCluster and the pods that are not ready, the oldest first.
    :param workloads: Kueue's, of a suspended RayJob; ``None`` if they could not be read.
    :param now: epoch seconds by the server's clock.
    """

    rayjob: Manifest | None
    ray_cluster: Manifest | None = None
    pods: Sequence[Pod] = ()
    events: Sequence[PodEvent] = ()
    workloads: Sequence[Manifest] | None = None
    now: float = 0.0


@dataclass(frozen=True)
class WaitingState:
    """What is kept from one look to the next.

    :param told: reasons that the log has already.
    :param heads: uids of the head pods of the last look.
    :param failed_heads: uids of head pods that ended, or were replaced, before the cluster was ready.
    :param latest: why it waits: what `cluster_wait` ends with.
    """

    told: frozenset[str] = frozenset()
    heads: frozenset[str] = frozenset()
    failed_heads: frozenset[str] = frozenset()
    latest: str = "nothing is known of it"


@dataclass(frozen=True)
class Readiness:
    """What one look means.

    :param lines: to show now.
    :param message: of a failure, one sentence.
    """

    verdict: Literal["ready", "waiting", "fails"]
    lines: tuple[str, ...]
    state: WaitingState
    message: str = ""
    failure_class: FailureClass | None = None


def judge_waiting(seen: ClusterSeen, state: WaitingState) -> Readiness:
    """Decide whether a cluster is ready, may become ready, or can't."""
    if seen.rayjob is None or (seen.rayjob["metadata"].get("deletionTimestamp") is not None):
        told = "The RayJob of the cluster was deleted before it was ready; a retry makes another one."
        return Readiness("fails", (), state, told, FailureClass.CANCELLED)
    job = rayjob_state(seen.rayjob)
    if job.terminal:
        failure_class, message = rayjob_end(job)
        if seen.ray_cluster is not None:  # it may outlive its job, and say why workers were missing
            _, state = _told(list(_reasons(job, seen)), state)
        return Readiness("fails", (), state, message, failure_class)
    if job.deployment_status == "Waiting" and job.ray_cluster and seen.ray_cluster is None:
        # In other states KubeRay makes another one.
        told = f"RayCluster {job.ray_cluster} was deleted before its job was there; a retry makes another."
        return Readiness("fails", (), state, told, FailureClass.CLUSTER_LOST)
    found = list(_reasons(job, seen))
    lines, state = _told(found, state)
    if job.deployment_status in READY:
        return Readiness("ready", lines, state)
    for subject, reason in found:
        if reason.hopeless:
            return Readiness("fails", lines, state, reason.sentence(subject), reason.hopeless)
    heads = frozenset(pod.uid for pod in seen.pods if pod.head)
    failed = {pod.uid for pod in seen.pods if pod.head and pod_end(pod, seen.events) is not None}
    # KubeRay replaces a head that has ended within a second, so that each look may find a young one.
    replaced = state.heads - heads if heads else frozenset[str]()
    state = replace(state, heads=heads or state.heads, failed_heads=state.failed_heads | failed | replaced)
    if len(state.failed_heads) >= _MOST_FAILED_HEADS:
        shown, end = _ended_head(seen) or ("", None)
        count = count_of(len(state.failed_heads), "head pod")
        why = state.latest if end is None else ended_reason(end).sentence(shown)
        failure_class = FailureClass.INTERNAL if end is None else end.failure_class
        message = f"The cluster's head does not start: {count} ended, and then {why}"
        return Readiness("fails", lines, state, message, failure_class)
    return Readiness("waiting", lines, state)


def rayjob_end(job: RayJobState) -> tuple[FailureClass, str]:
    """How KubeRay ended a RayJob, as a failure class and a sentence."""
    failure_class = _ENDS.get(job.reason or job.deployment_status, FailureClass.INTERNAL)
    said = " ".join(job.message.split()).rstrip(".") or "it gives no message"
    if failure_class is FailureClass.USER_ERROR:
        return failure_class, f"KubeRay refuses the RayJob {job.name}: {said}; correct ray_cluster."
    reason = job.reason or job.deployment_status
    if failure_class is FailureClass.TIMEOUT:
        said += "; the task's deadline has passed, or no task had followed the job for long"
    return failure_class, f"KubeRay ended the RayJob {job.name} ({reason}): {said}."


def version_mismatch(declared: str | None, answered: str, image: str = "") -> str | None:
    """A sentence if the cluster runs another Ray than `ray_version` says; ``None`` if it fits.

    :param declared: may be shorter, such as ``2.56``.
    :param answered: `ray_version` of the answer to ``GET /api/version``.
    """
    known, runs = _RELEASE.match(declared or ""), _RELEASE.match(answered)
    if known is None or runs is None:
        return None
    wanted, there = known[0].split("."), runs[0].split(".")
    if there[: len(wanted)] == wanted:
        return None
    of = f"image {image}" if image else "its image"
    return f"ray_version: it is {declared!r}, but {of} has Ray {answered}; set it to the image's version."


def _reasons(job: RayJobState, seen: ClusterSeen) -> Iterable[tuple[str, Reason]]:
    """Why it waits, the part first that all others wait for."""
    of_job = f"RayJob {job.name}"
    if job.suspended and seen.rayjob is not None:
        yield of_job, admission(seen.rayjob, seen.workloads)
        return
    heads = [pod for pod in seen.pods if pod.head]
    of_cluster = f"RayCluster {job.ray_cluster}" if job.ray_cluster else of_job
    refused = creation_failure(seen.ray_cluster, seen.events)
    if refused is not None:
        yield of_cluster, refused
    elif seen.ray_cluster is None:
        yield of_job, _without_cluster(job, seen.now)
    elif not heads and _ended_head(seen) is None:
        yield of_cluster, Reason("no head", "waits for KubeRay to create the head pod")
    for pod in heads:
        reason = pod_reason(pod, seen.events, job.secret)
        if reason is not None or pod.ready:
            yield pod.shown, reason or Reason("ready", "is ready")
    if not any(pod.ready for pod in heads) and (ended := _ended_head(seen)) is not None:
        yield ended[0], ended_reason(ended[1])
    yield from _of_workers(job, seen)


def _without_cluster(job: RayJobState, now: float) -> Reason:
    if not job.deployment_status and now - job.created > _UNSEEN:
        told = "KubeRay has not taken it up"
        return Reason("unseen", told, "look whether KubeRay's operator runs, and watches this namespace")
    return Reason("no cluster", "waits for KubeRay to create its cluster")


def _ended_head(seen: ClusterSeen) -> tuple[str, Diagnosis] | None:
    """Name and end of the latest head pod that has ended, as its own status or KubeRay's event says."""
    for pod in seen.pods:
        if pod.head and (end := pod_end(pod, seen.events)) is not None:
            return pod.shown, end
    return gone_head(seen.events)


def _of_workers(job: RayJobState, seen: ClusterSeen) -> Iterable[tuple[str, Reason]]:
    """Workers of a group that wait for the same reason are told of together."""
    together: dict[tuple[str, str], list[Reason]] = {}
    for pod in seen.pods:
        reason = None if pod.head else pod_reason(pod, seen.events, job.secret)
        if reason is not None:
            together.setdefault((pod.group, reason.key), []).append(reason)
    for (group, _), reasons in together.items():
        yield f"{count_of(len(reasons), 'worker pod')} of group {group}", reasons[0]


def _told(found: Sequence[tuple[str, Reason]], state: WaitingState) -> tuple[tuple[str, ...], WaitingState]:
    """The lines that are new, and a state that knows them."""
    lines, told = [], set(state.told)
    for subject, reason in found:
        key = f"{subject}|{reason.key}"
        if key not in told and len(told) < _MOST_TOLD:
            told.add(key)
            lines.append(f"{subject}: {reason.text.rstrip('.')}.")
    waits = [one for one in found if one[1].key != "ready"]
    latest = waits[0][1].sentence(waits[0][0]) if waits else state.latest
    return tuple(lines), replace(state, told=frozenset(told), latest=latest)
