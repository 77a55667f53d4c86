# SPDX-License-Identifier: Apache-2.0
"""Look at a cluster: until it is ready, and while a job runs on it; tell why it is not ready, or silent."""

from __future__ import annotations

import asyncio
import math
import random
import re
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace

from airflow_provider_raybatch.cluster.follow.failure_reason import Diagnosis
from airflow_provider_raybatch.cluster.jobs_api.errors import ClusterError, ClusterUnreachableError
from airflow_provider_raybatch.cluster.kuberay.api import KubernetesApi, Manifest
from airflow_provider_raybatch.cluster.kuberay.errors import ForbiddenError, NoSuchKindError
from airflow_provider_raybatch.cluster.kuberay.last_words import LastWords, last_words
from airflow_provider_raybatch.cluster.kuberay.pod_states import (
    CLUSTER_LABEL,
    Pod,
    PodEvent,
    events_of,
    pod_of,
)
from airflow_provider_raybatch.cluster.kuberay.rayjob import ClusterClaim, RayJobState, rayjob_state
from airflow_provider_raybatch.cluster.kuberay.readiness import (
    ClusterSeen,
    WaitingState,
    judge_waiting,
    rayjob_end,
)
from airflow_provider_raybatch.cluster.kuberay.reasons import JOB_LABEL, QUEUE_LABEL
from airflow_provider_raybatch.contract.base import in_words
from airflow_provider_raybatch.contract.failures import FailureClass

_POLL, _SLOWEST_POLL, _SLOWER = 4.0, 15.0, 1.3
_MOST_POD_EVENTS = 4
"""Pods of one look whose events are asked for."""
_MOST_GONE_WORKERS = 8
_HEAD = re.compile(r"Created head [Pp]od [^/\s]+/(\S+)")
_WORKER = re.compile(r"Created worker [Pp]od [^/\s]+/(\S+)")

_OF_PODS = frozenset({"AppFailed", "JobStatusCheckTimeoutExceeded", ""})
"""Reasons of a RayJob's end that its pods explain better."""


class ClusterNotReadyError(ClusterError):
    """A cluster can't become ready, or was not within `cluster_wait`; its failure class says which."""

    failure_class = FailureClass.STALLED


async def wait_for_cluster(
    api: KubernetesApi,
    claim: ClusterClaim,
    *,
    cluster_wait: float,
    queue_wait: float | None = None,
    tell: Callable[[str], None],
    answers: Callable[[RayJobState], Awaitable[str | None]] | None = None,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> RayJobState:
    """Wait until a claimed cluster is ready. Nothing is created or deleted: release the claim after an error.

    :param cluster_wait: seconds from the RayJob's creation, or from its admission by Kueue, by the server's
        clock.
    :param queue_wait: seconds from its creation that it may wait for its admission; by default, for ever.
    :param tell: called with each line for the log.
    :param answers: asked once KubeRay says that the cluster is there: ``None`` if it answers, else why
        it does not yet. It may raise :class:`ClusterUnreachableError` for the latter, too.
    :raises ClusterNotReadyError: it can't become ready, or was not in time.
    :raises ClusterError: Kubernetes refuses a request, or `answers` raised another one.
    """
    state, deadline, pause = WaitingState(), clock() + cluster_wait, _POLL
    field, suspended = "cluster_wait", 0.0
    while True:
        try:
            seen = await observe(api, claim)
            if seen.rayjob is not None:
                job, most = rayjob_state(seen.rayjob), cluster_wait
                field, begun = "cluster_wait", job.created
                is_queued = QUEUE_LABEL in (seen.rayjob["metadata"].get("labels") or {})
                if is_queued and job.suspended:
                    field, most, suspended = "queue_wait", _no_end(queue_wait), seen.now
                elif is_queued:
                    begun = max(begun, job.started or 0.0, suspended)
                deadline = clock() + most - max(0.0, seen.now - begun)
            found = judge_waiting(seen, state)
            state = found.state
            for line in found.lines:
                tell(line)
            if found.verdict == "fails":
                raise ClusterNotReadyError(found.message, found.failure_class)
            if found.verdict == "ready" and seen.rayjob is not None:
                not_yet = None if answers is None else await answers(job)
                if not_yet is None:
                    return job
                state = _later(state, not_yet, tell)
        except ClusterUnreachableError as error:
            state = _later(state, str(error), tell)
        left = deadline - clock()
        if left <= 0:
            raise ClusterNotReadyError(
                f"{field}: the cluster was not {'admitted' if field == 'queue_wait' else 'ready'} within "
                f"{in_words(_no_end(queue_wait) if field == 'queue_wait' else cluster_wait)}; {state.latest}"
            )
        await sleep(max(0.1, min(left, pause * random.uniform(0.8, 1.2))))
        pause = min(_SLOWEST_POLL, pause * _SLOWER)


def _no_end(seconds: float | None) -> float:
    return math.inf if seconds is None else seconds


async def observe(api: KubernetesApi, claim: ClusterClaim) -> ClusterSeen:
    """Look at a RayJob once: itself, its cluster, pods, and the events of what is not ready."""
    rayjob = await api.get("RayJob", claim.name)
    if rayjob is None or rayjob["metadata"]["uid"] != claim.uid:
        return ClusterSeen(None, now=api.now())
    job = rayjob_state(rayjob)
    if job.suspended:
        return ClusterSeen(rayjob, workloads=await _workloads(api, job), now=api.now())
    ray_cluster = await api.get("RayCluster", job.ray_cluster) if job.ray_cluster else None
    if ray_cluster is None:
        return ClusterSeen(rayjob, events=await _events(api, [job.name]), now=api.now())
    pods = await cluster_pods(api, job.ray_cluster)
    names = [] if any(pod.head and pod.ready for pod in pods) else [job.ray_cluster]
    events = await _events(api, [*names, *_not_ready(pods)])
    return ClusterSeen(rayjob, ray_cluster, pods, events, now=api.now())


async def cluster_pods(api: KubernetesApi, ray_cluster: str) -> list[Pod]:
    """The pods of a RayCluster, the head first."""
    found = await api.list("Pod", labels=f"{CLUSTER_LABEL}={ray_cluster}")
    return sorted(map(pod_of, found), key=lambda pod: (not pod.head, pod.name))


async def read_last_words(api: KubernetesApi, ray_cluster: str) -> LastWords:
    """How pods of a cluster ended, also those that KubeRay has deleted since; ask before the cluster goes.

    :raises ClusterError: Kubernetes gives no answer, or refuses.
    """
    pods = await cluster_pods(api, ray_cluster)
    events = await _events(api, [ray_cluster])
    ended = [pod.name for pod in pods if not pod.ready or pod.deleting][:_MOST_POD_EVENTS]
    heads = [found[1] for event in events if (found := _HEAD.search(event.message))]
    there = {pod.name for pod in pods}
    made = [found[1] for event in events if (found := _WORKER.search(event.message))]
    gone = [name for name in dict.fromkeys(made) if name not in there][-_MOST_GONE_WORKERS:]
    names = dict.fromkeys([*heads[-2:], *ended, *gone])
    return last_words(pods, [*events, *await _events(api, names)])


def _not_ready(pods: Iterable[Pod]) -> list[str]:
    """Names of the pods that are not ready: the head, and one of each group of workers."""
    found: dict[tuple[bool, str], str] = {}
    for pod in pods:
        if not pod.ready and not pod.deleting:
            found.setdefault((pod.head, pod.group), pod.name)
    return list(found.values())[:_MOST_POD_EVENTS]


async def _events(api: KubernetesApi, names: Iterable[str]) -> list[PodEvent]:
    """Events of objects by name, also of earlier ones: a new head may have the name of the last one."""
    answers = await asyncio.gather(
        *(api.list("Event", fields=f"involvedObject.name={name}") for name in names)
    )
    return events_of(event for manifests in answers for event in manifests)


async def _workloads(api: KubernetesApi, job: RayJobState) -> list[Manifest] | None:
    """What Kueue says of a RayJob; ``None`` if that can't be read."""
    try:
        return await api.list("Workload", labels=f"{JOB_LABEL}={job.uid}")
    except (ForbiddenError, NoSuchKindError):
        return None


def _later(state: WaitingState, why: str, tell: Callable[[str], None]) -> WaitingState:
    if why not in state.told:
        tell(why)
    return replace(state, told=state.told | {why}, latest=why)


async def why_silent(api: KubernetesApi, claim: ClusterClaim, ray_cluster: str = "") -> LastWords:
    """Ask Kubernetes about a cluster whose Jobs API gives no answer.

    :param ray_cluster: name of the RayCluster that is silent; empty if it is not known.
    :return: lines for the log, and the cause; without one the head runs, so the network may be at fault.
    :raises ClusterError: Kubernetes gives no answer either, or refuses.
    """
    manifest = await api.get("RayJob", claim.name)
    job = None if manifest is None else rayjob_state(manifest)
    if job is None or job.uid != claim.uid:
        return LastWords(cause=_gone(claim.name))
    words = await read_last_words(api, job.ray_cluster) if job.ray_cluster else LastWords()
    return replace(words, cause=cause_of_silence(job, words.cause, ray_cluster))


def cause_of_silence(job: RayJobState, of_pods: Diagnosis | None, ray_cluster: str = "") -> Diagnosis | None:
    """Why a RayJob's cluster is gone, or going; ``None`` if it should answer. Pure.

    :param of_pods: how its head's pod ended, if it did.
    :param ray_cluster: see :func:`why_silent`.
    """
    if job.terminal:
        if job.deployment_status == "Complete":
            return None  # its Ray job has ended well
        if of_pods is not None and job.reason in _OF_PODS:
            return of_pods
        return Diagnosis(*rayjob_end(job))
    if job.deleting:
        return _gone(job.name)
    if job.suspended:
        told = f"Kueue has taken the RayJob {job.name}'s quota back, which ended its cluster and job."
        return Diagnosis(FailureClass.NODE_LOST, told)
    if ray_cluster and job.ray_cluster != ray_cluster:
        # A resumed RayJob is Running at once, and KubeRay polls a job that its new head never had.
        told = (
            f"The cluster {ray_cluster} of RayJob {job.name} was replaced, as when Kueue takes quota back "
            "and gives it again; its job ended with it."
        )
        return Diagnosis(FailureClass.NODE_LOST, told)
    return of_pods


def _gone(name: str) -> Diagnosis:
    told = f"The RayJob {name} was deleted, and its cluster with it; a retry makes another one."
    return Diagnosis(FailureClass.CANCELLED, told)
