# SPDX-License-Identifier: Apache-2.0
"""Decide whether a cluster is ready, may become ready, or can't, and what to say of it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from airflow_provider_raybatch.contract.failures import FailureClass
from airflow_provider_raybatch.contract.text import count_of
from airflow_provider_raybatch.kubernetes.api.client import Manifest
from airflow_provider_raybatch.kubernetes.kuberay.pod_states import Pod, PodEvent
from airflow_provider_raybatch.kubernetes.kuberay.rayjob import RayJobState, rayjob_state
from airflow_provider_raybatch.kubernetes.kuberay.verdicts import (
    Reason,
    admission,
    creation_failure,
    latest_head_exit,
    pod_reason,
)

READY = frozenset({"Waiting", "Running"})
"""`jobDeploymentStatus` of a RayJob whose cluster is there."""
_MOST_LINES = 200
_UNSEEN = 30.0
"""Seconds after which KubeRay should have taken a RayJob up."""
_ENDS = {
    "PreRunningDeadlineExceeded": FailureClass.STALLED,
    "DeadlineExceeded": FailureClass.TIMEOUT,
    "ValidationFailed": FailureClass.USER_ERROR,
    "JobStatusCheckTimeoutExceeded": FailureClass.CLUSTER_UNREACHABLE,
}


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

    :param logged: reasons that the log has already.
    :param latest: why it waits: what `cluster_wait` ends with.
    """

    logged: frozenset[str] = frozenset()
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
    job = None if seen.rayjob is None else rayjob_state(seen.rayjob)
    if job is None or job.deleting:
        told = "The RayJob of the cluster was deleted before it was ready; a retry makes another one."
        return Readiness("fails", (), state, told, FailureClass.CANCELLED)
    if job.terminal:
        failure_class, message = rayjob_end(job)
        if seen.ray_cluster is not None:  # it may outlive its job, and say why workers were missing
            _, state = _new_lines(list(_reasons(job, seen)), state)
        return Readiness("fails", (), state, message, failure_class)
    if job.deployment_status == "Waiting" and job.ray_cluster and seen.ray_cluster is None:
        # In other states KubeRay makes another one.
        told = f"RayCluster {job.ray_cluster} was deleted before its job was there; a retry makes another."
        return Readiness("fails", (), state, told, FailureClass.CLUSTER_LOST)
    found = list(_reasons(job, seen))
    lines, state = _new_lines(found, state)
    if job.deployment_status in READY:
        return Readiness("ready", lines, state)
    for subject, reason in found:
        if reason.hopeless:
            return Readiness("fails", lines, state, reason.sentence(subject), reason.hopeless)
    return Readiness("waiting", lines, state)


def rayjob_end(job: RayJobState) -> tuple[FailureClass, str]:
    """How KubeRay ended a RayJob, as a failure class and a sentence."""
    failure_class = _ENDS.get(job.reason or job.deployment_status, FailureClass.INTERNAL)
    said = " ".join(job.message.split()).rstrip(".") or "it gives no message"
    if failure_class is FailureClass.USER_ERROR:
        said += "; correct ray_cluster"
    if failure_class is FailureClass.TIMEOUT:
        said += "; the task's deadline has passed, or no task had followed the job for long"
    why = job.reason or job.deployment_status
    return failure_class, f"KubeRay ended the RayJob {job.name} ({why}): {said}."


def _reasons(job: RayJobState, seen: ClusterSeen) -> Iterable[tuple[str, Reason]]:
    """Why it waits, the part first that all others wait for."""
    of_job = f"RayJob {job.name}"
    if job.suspended and seen.rayjob is not None:
        yield of_job, admission(seen.rayjob, seen.workloads)
        return
    heads = [pod for pod in seen.pods if pod.head]
    ended = latest_head_exit(seen.pods, seen.events)
    of_cluster = f"RayCluster {job.ray_cluster}" if job.ray_cluster else of_job
    refused = creation_failure(seen.ray_cluster, seen.events)
    if refused is not None:
        yield of_cluster, refused
    elif seen.ray_cluster is None:
        yield of_job, _without_cluster(job, seen.now)
    elif not heads and ended is None:
        yield of_cluster, Reason("no head", "waits for KubeRay to create the head pod")
    if ended is not None and not any(pod.ready for pod in heads):
        yield ended.shown, ended.reason  # KubeRay replaces it within a second; its end tells more
    for pod in heads:
        reason = pod_reason(pod, seen.events, job.secret)
        if pod.ready or (reason is not None and not pod.ended):
            yield pod.shown, reason or Reason("ready", "is ready")
    yield from _of_workers(job, seen)


def _without_cluster(job: RayJobState, now: float) -> Reason:
    if not job.deployment_status and now - job.created > _UNSEEN:
        told = "KubeRay has not taken it up"
        return Reason("unseen", told, "look whether KubeRay's operator runs, and watches this namespace")
    return Reason("no cluster", "waits for KubeRay to create its cluster")


def _of_workers(job: RayJobState, seen: ClusterSeen) -> Iterable[tuple[str, Reason]]:
    """Workers of a group that wait for the same reason are named together."""
    together: dict[tuple[str, str], list[Reason]] = {}
    for pod in seen.pods:
        reason = None if pod.head else pod_reason(pod, seen.events, job.secret)
        if reason is not None:
            together.setdefault((pod.group, reason.key), []).append(reason)
    for (group, _), reasons in together.items():
        yield f"{count_of(len(reasons), 'worker pod')} of group {group}", reasons[0]


def _new_lines(
    found: Sequence[tuple[str, Reason]], state: WaitingState
) -> tuple[tuple[str, ...], WaitingState]:
    """The lines that the log has not, and a state that knows them."""
    lines, logged = [], set(state.logged)
    for subject, reason in found:
        key = f"{subject}|{reason.key}"
        if key not in logged and len(logged) < _MOST_LINES:
            logged.add(key)
            lines.append(f"{subject}: {reason.text.rstrip('.')}.")
    waits = [one for one in found if one[1].key != "ready"]
    latest = waits[0][1].sentence(waits[0][0]) if waits else state.latest
    return tuple(lines), replace(state, logged=frozenset(logged), latest=latest)
