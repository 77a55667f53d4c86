# SPDX-License-Identifier: Apache-2.0
"""Look at a cluster, until it is ready and while a job runs on it, and find out why it is silent."""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace

from airflow_provider_raybatch.cluster.follow.failure_reason import Diagnosis
from airflow_provider_raybatch.cluster.jobs_api.errors import ClusterError, ClusterUnreachableError
from airflow_provider_raybatch.contract.base import in_words
from airflow_provider_raybatch.contract.failures import FailureClass
from airflow_provider_raybatch.kubernetes.api.client import KubernetesClient, Manifest
from airflow_provider_raybatch.kubernetes.api.errors import ForbiddenError, NoSuchKindError
from airflow_provider_raybatch.kubernetes.kuberay.pod_states import (
    CLUSTER_LABEL,
    Pod,
    PodEvent,
    events_of,
    pod_of,
)
from airflow_provider_raybatch.kubernetes.kuberay.rayjob import ClusterClaim, RayJobState, rayjob_state
from airflow_provider_raybatch.kubernetes.kuberay.readiness import (
    ClusterSeen,
    WaitingState,
    judge_waiting,
    rayjob_end,
)
from airflow_provider_raybatch.kubernetes.kuberay.verdicts import JOB_LABEL, PodExits, pod_exits

_POLL, _SLOWEST_POLL, _SLOWER = 4.0, 15.0, 1.3
_MOST_POD_EVENTS = 4
"""Pods of one look whose events are asked for."""
_MOST_GONE_WORKERS = 8
_CREATED = re.compile(r"Created (head|worker) [Pp]od [^/\s]+/(\S+)")

_OF_PODS = frozenset({"AppFailed", "JobStatusCheckTimeoutExceeded", ""})
"""Reasons of a RayJob's end that its pods explain better."""


class ClusterNotReadyError(ClusterError):
    """A cluster can't become ready, or was not within `cluster_wait`; its failure class says which."""

    failure_class = FailureClass.STALLED


async def wait_for_cluster(
    api: KubernetesClient,
    claim: ClusterClaim,
    *,
    cluster_wait: float,
    show: Callable[[str], None],
    answers: Callable[[RayJobState], Awaitable[str | None]] | None = None,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> RayJobState:
    """Wait until a claimed cluster is ready. Nothing is created or deleted: release the claim after an error.

    :param cluster_wait: seconds from the RayJob's creation, in a queue and after it, by the server's clock.
    :param show: called with each line for the log.
    :param answers: asked once KubeRay says that the cluster is there: ``None`` if it answers, else why
        it does not yet. It may raise :class:`ClusterUnreachableError` for the latter, too.
    :raises ClusterNotReadyError: it can't become ready, or was not in time.
    :raises ClusterError: Kubernetes refuses a request, or `answers` raised another one.
    """
    state, deadline, pause = WaitingState(), clock() + cluster_wait, _POLL
    while True:
        try:
            seen = await observe(api, claim)
            if seen.rayjob is not None:
                job = rayjob_state(seen.rayjob)
                deadline = clock() + cluster_wait - max(0.0, seen.now - job.created)
            found = judge_waiting(seen, state)
            state = found.state
            for line in found.lines:
                show(line)
            if found.verdict == "fails":
                raise ClusterNotReadyError(found.message, found.failure_class)
            if found.verdict == "ready" and seen.rayjob is not None:
                not_yet = None if answers is None else await answers(job)
                if not_yet is None:
                    return job
                state = _later(state, not_yet, show)
        except ClusterUnreachableError as error:
            state = _later(state, str(error), show)
        left = deadline - clock()
        if left <= 0:
            raise ClusterNotReadyError(
                f"cluster_wait: the cluster was not ready within {in_words(cluster_wait)}; {state.latest}"
            )
        await sleep(max(0.1, min(left, pause * random.uniform(0.8, 1.2))))
        pause = min(_SLOWEST_POLL, pause * _SLOWER)


def _later(state: WaitingState, why: str, show: Callable[[str], None]) -> WaitingState:
    if why not in state.logged:
        show(why)
    return replace(state, logged=state.logged | {why}, latest=why)


async def observe(api: KubernetesClient, claim: ClusterClaim) -> ClusterSeen:
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
    # The head, and one worker of each group, since all of a group mostly wait for the same.
    waiting: dict[tuple[bool, str], str] = {}
    for pod in pods:
        if not pod.ready and not pod.deleting:
            waiting.setdefault((pod.head, pod.group), pod.name)
    names += [*waiting.values()][:_MOST_POD_EVENTS]
    return ClusterSeen(rayjob, ray_cluster, pods, await _events(api, names), now=api.now())


async def cluster_pods(api: KubernetesClient, ray_cluster: str) -> list[Pod]:
    """The pods of a RayCluster, the head first."""
    found = await api.list("Pod", labels=f"{CLUSTER_LABEL}={ray_cluster}")
    return sorted(map(pod_of, found), key=lambda pod: (not pod.head, pod.name))


async def read_pod_exits(api: KubernetesClient, ray_cluster: str) -> PodExits:
    """How pods of a cluster ended, also those that KubeRay has deleted since; ask before the cluster goes.

    :raises ClusterError: Kubernetes gives no answer, or refuses.
    """
    pods = await cluster_pods(api, ray_cluster)
    events = await _events(api, [ray_cluster])
    ended = [pod.name for pod in pods if not pod.ready or pod.deleting][:_MOST_POD_EVENTS]
    there = {pod.name for pod in pods}
    made = [found.groups() for event in events if (found := _CREATED.search(event.message))]
    heads = [name for role, name in made if role == "head"]
    gone = [name for role, name in dict.fromkeys(made) if role == "worker" and name not in there]
    names = dict.fromkeys([*heads[-2:], *ended, *gone[-_MOST_GONE_WORKERS:]])
    return pod_exits(pods, [*events, *await _events(api, names)])


async def _events(api: KubernetesClient, names: Iterable[str]) -> list[PodEvent]:
    """Events of objects by name, also of earlier ones: a new head may have the name of the last one."""
    answers = await asyncio.gather(
        *(api.list("Event", fields=f"involvedObject.name={name}") for name in names)
    )
    return events_of(event for manifests in answers for event in manifests)


async def _workloads(api: KubernetesClient, job: RayJobState) -> list[Manifest] | None:
    """What Kueue says of a RayJob; ``None`` if that can't be read."""
    try:
        return await api.list("Workload", labels=f"{JOB_LABEL}={job.uid}")
    except (ForbiddenError, NoSuchKindError):
        return None


async def why_silent(api: KubernetesClient, claim: ClusterClaim, ray_cluster: str = "") -> PodExits:
    """Ask Kubernetes about a cluster whose Jobs API gives no answer.

    :param ray_cluster: name of the RayCluster that is silent; empty if it is not known.
    :return: lines for the log, and the cause; without one the head runs, so the network may be at fault.
    :raises ClusterError: Kubernetes gives no answer either, or refuses.
    """
    manifest = await api.get("RayJob", claim.name)
    job = None if manifest is None else rayjob_state(manifest)
    if job is None or job.uid != claim.uid:
        return PodExits(cause=_deleted(claim.name))
    exits = await read_pod_exits(api, job.ray_cluster) if job.ray_cluster else PodExits()
    return replace(exits, cause=cause_of_silence(job, exits.cause, ray_cluster))


def cause_of_silence(job: RayJobState, of_pods: Diagnosis | None, ray_cluster: str = "") -> Diagnosis | None:
    """Why a RayJob's cluster is gone, or going; ``None`` if it should answer. Pure.

    :param of_pods: how its head's pod ended, if it did.
    :param ray_cluster: see :func:`why_silent`.
    """
    if job.deployment_status == "Complete":
        return None  # its Ray job has ended well
    if job.terminal:
        explained = of_pods if job.reason in _OF_PODS else None
        return explained or Diagnosis(*rayjob_end(job))
    if job.deleting:
        return _deleted(job.name)
    if job.suspended or (ray_cluster and job.ray_cluster != ray_cluster):
        # A resumed RayJob is Running at once, and KubeRay polls a job that its new head never had.
        told = f"Kueue has taken the quota of RayJob {job.name} back, which ended its cluster and its job."
        return Diagnosis(FailureClass.NODE_LOST, told)
    return of_pods


def _deleted(name: str) -> Diagnosis:
    told = f"The RayJob {name} was deleted, and its cluster with it; a retry makes another one."
    return Diagnosis(FailureClass.CANCELLED, told)
