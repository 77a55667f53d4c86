# SPDX-License-Identifier: Apache-2.0
"""Keeps the cluster of a job while the job is followed, and explains its silence."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from airflow_provider_raybatch.cluster.follow.outcome import FollowedLine, Outcome, Verdict
from airflow_provider_raybatch.cluster.jobs_api.errors import ClusterError
from airflow_provider_raybatch.contract.failures import FailureClass
from airflow_provider_raybatch.contract.text import clean
from airflow_provider_raybatch.kubernetes.kuberay.lease import LeasedRayCluster, keep
from airflow_provider_raybatch.kubernetes.kuberay.lifecycle import renew, state
from airflow_provider_raybatch.kubernetes.kuberay.rayjob import FOR_EVER, ClusterClaim
from airflow_provider_raybatch.kubernetes.kuberay.readiness import WaitingState, judge_waiting
from airflow_provider_raybatch.kubernetes.kuberay.waiting import observe, why_silent

if TYPE_CHECKING:
    from airflow_provider_raybatch.kubernetes.api.client import KubernetesClient
    from airflow_provider_raybatch.kubernetes.connection import Kubernetes

_PAUSE = 30.0
_SILENT_PAUSE = 10.0
_LONGEST_POLL = 20.0
"""Seconds, since the next poll of the job waits for it."""
_LOST = frozenset({"lost", "deleted", "unreachable"})
_LACKS_NODES = frozenset({FailureClass.STALLED, FailureClass.UNSCHEDULABLE})


class _Heartbeat(ABC):
    """A :class:`~airflow_provider_raybatch.cluster.follow.poll.Host` that asks Kubernetes now and then."""

    def __init__(self, kubernetes: Kubernetes) -> None:
        self._kubernetes = kubernetes
        self._logged: set[str] = set()
        self._next = {False: 0.0, True: 0.0}  # when Kubernetes is asked again, by whether the head is silent

    async def looked(self, verdict: Verdict) -> Verdict:
        """See :meth:`Host.looked`."""
        if not self._due(verdict):
            return verdict
        try:
            async with asyncio.timeout(_LONGEST_POLL), self._kubernetes.api() as api:
                return await self._polled(api, verdict)
        except (ClusterError, TimeoutError) as error:
            why = str(error) or "no answer in time."
            line = f"Kubernetes can't be asked about the cluster now: {why}"
            return self._with(verdict, (line,), "warning")

    @abstractmethod
    async def _polled(self, api: KubernetesClient, verdict: Verdict) -> Verdict:
        """The verdict with what Kubernetes says."""

    def _due(self, verdict: Verdict) -> bool:
        """Whether to ask now: after some seconds, and when the job is lost."""
        outcome, silent = verdict.outcome, _is_silent(verdict)
        if outcome is not None and outcome.state not in _LOST:
            return False
        now = time.monotonic()
        if outcome is None and now < self._next[silent]:
            return False
        self._next[silent] = now + (_SILENT_PAUSE if silent else _PAUSE)
        return True

    def new_lines(self, lines: Iterable[str]) -> list[str]:
        """The lines that the log has not; it has them from now on."""
        new = [line for line in lines if line not in self._logged]
        self._logged.update(new)
        return new

    def _with(
        self, verdict: Verdict, lines: tuple[str, ...], level: Literal["info", "warning"] = "info"
    ) -> Verdict:
        added = (FollowedLine(clean(line), level) for line in self.new_lines(lines))
        return replace(verdict, lines=(*verdict.lines, *added))


class RunHeartbeat(_Heartbeat):
    """Keeps a cluster that was made for one job.

    :param window: see :class:`~airflow_provider_raybatch.kubernetes.clusters.run_cluster.RunCluster`, as is
        `batch`.
    :param ray_cluster: name of the RayCluster at whose address the job is followed.
    """

    def __init__(
        self,
        kubernetes: Kubernetes,
        claim: ClusterClaim,
        submission_id: str,
        window: float | None,
        *,
        batch: bool,
        ray_cluster: Callable[[], str],
    ) -> None:
        super().__init__(kubernetes)
        self._claim, self._submission_id = claim, submission_id
        self._window = FOR_EVER if window is None else window
        self._batch = batch
        self._waiting = WaitingState()
        self._ray_cluster = ray_cluster

    def _due(self, verdict: Verdict) -> bool:
        return _lacks_nodes(verdict) or super()._due(verdict)

    async def _polled(self, api: KubernetesClient, verdict: Verdict) -> Verdict:
        if _lacks_nodes(verdict):
            # The job says only that it lacks nodes; Kubernetes says why.
            why = judge_waiting(await observe(api, self._claim), WaitingState(latest="")).state.latest
            return _adding(verdict, why) if why else verdict
        if _is_silent(verdict) or verdict.outcome is not None:
            return await self._explained(api, verdict)
        await renew(api, self._claim, self._window, self._submission_id)
        news = judge_waiting(await observe(api, self._claim), self._waiting)
        self._waiting = news.state
        return self._with(verdict, news.lines)

    async def _explained(self, api: KubernetesClient, verdict: Verdict) -> Verdict:
        exits = await why_silent(api, self._claim, self._ray_cluster())
        if exits.cause is not None and _is_silent(verdict):
            verdict = replace(verdict, lines=())  # they say that the follower waits for it
        verdict = self._with(verdict, exits.lines)
        if exits.cause is not None:
            return _failed(verdict, exits.cause.failure_class, exits.cause.message)
        if exits.lines and verdict.outcome is not None and verdict.outcome.state == "lost":
            return _adding(verdict, exits.lines[0])
        job = await state(api, self._claim)
        if not self._batch and job is not None and job.job_status == "SUCCEEDED":
            message = "The job finished successfully, as KubeRay says."
            return replace(verdict, outcome=Outcome("succeeded", None, message, ended=True))
        if job is not None and job.terminal and await api.get("RayCluster", job.ray_cluster) is None:
            message = f"The cluster of RayJob {job.name} went before the result of its job was read."
            return _failed(verdict, FailureClass.CLUSTER_LOST, message)
        return verdict


class LeaseHeartbeat(_Heartbeat):
    """Renews the lease of a cluster, and notices that it is gone."""

    def __init__(self, kubernetes: Kubernetes, cluster: LeasedRayCluster) -> None:
        super().__init__(kubernetes)
        self._cluster = cluster

    async def _polled(self, api: KubernetesClient, verdict: Verdict) -> Verdict:
        gone = await keep(api, self._cluster)
        # A retry finds no cluster either: only a clear of the task that makes it helps.
        return verdict if gone is None else _failed(verdict, FailureClass.USER_ERROR, gone)


def _is_silent(verdict: Verdict) -> bool:
    """Whether the head has not answered lately."""
    return verdict.state.unreachable_since is not None


def _lacks_nodes(verdict: Verdict) -> bool:
    return verdict.outcome is not None and verdict.outcome.failure_class in _LACKS_NODES


def _failed(verdict: Verdict, failure_class: FailureClass, message: str) -> Verdict:
    return replace(verdict, outcome=Outcome("failed", failure_class, clean(message), ended=True))


def _adding(verdict: Verdict, why: str) -> Verdict:
    """Add a sentence to that of an outcome."""
    assert verdict.outcome is not None
    message = f"{verdict.outcome.message} {clean(why)}"
    return replace(verdict, outcome=replace(verdict.outcome, message=message))
