# SPDX-License-Identifier: Apache-2.0
"""Keeps a cluster that was made for a job while the job is followed, and explains its silence."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from airflow_provider_raybatch.cluster.follow.outcome import FollowedLine, Outcome, Verdict
from airflow_provider_raybatch.cluster.jobs_api.errors import ClusterError
from airflow_provider_raybatch.cluster.kuberay.lifecycle import renew, state
from airflow_provider_raybatch.cluster.kuberay.rayjob import FOR_EVER, ClusterClaim
from airflow_provider_raybatch.cluster.kuberay.readiness import WaitingState
from airflow_provider_raybatch.cluster.kuberay.silence import cluster_news, why_silent
from airflow_provider_raybatch.contract.failures import FailureClass
from airflow_provider_raybatch.contract.text import clean
from airflow_provider_raybatch.places.looks import PATIENCE, Looks, is_silent

if TYPE_CHECKING:
    from airflow_provider_raybatch.cluster.kuberay.client import KubernetesClient
    from airflow_provider_raybatch.places.kubernetes import Kubernetes


_LACKS_NODES = frozenset({FailureClass.STALLED, FailureClass.UNSCHEDULABLE})


class Keeper:
    """The :class:`~airflow_provider_raybatch.cluster.follow.host.Host` of one job.

    :param window: see :class:`~airflow_provider_raybatch.places.own_cluster.OwnCluster`, as is `batch`.
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
        self._kubernetes, self._claim, self._submission_id = kubernetes, claim, submission_id
        self._window = FOR_EVER if window is None else window
        self._batch = batch
        self._waiting = WaitingState()
        self._told: set[str] = set()
        self._looks = Looks()
        self._ray_cluster = ray_cluster

    async def looked(self, verdict: Verdict) -> Verdict:
        """See :meth:`Host.looked`."""
        lacks_nodes = verdict.outcome is not None and verdict.outcome.failure_class in _LACKS_NODES
        if not (lacks_nodes or self._looks.due(verdict)):
            return verdict
        try:
            async with asyncio.timeout(PATIENCE), self._kubernetes.api() as api:
                if lacks_nodes:
                    return await self._with_reason(api, verdict)
                if is_silent(verdict) or verdict.outcome is not None:
                    return await self._explained(api, verdict)
                return await self._kept(api, verdict)
        except (ClusterError, TimeoutError) as error:
            return self._with(
                verdict,
                (f"Kubernetes can't be asked about the cluster now: {str(error) or 'no answer in time.'}",),
                "warning",
            )

    async def _kept(self, api: KubernetesClient, verdict: Verdict) -> Verdict:
        await renew(api, self._claim, self._window, self._submission_id)
        news = await cluster_news(api, self._claim, self._waiting)
        self._waiting = news.state
        return self._with(verdict, news.lines)

    async def _with_reason(self, api: KubernetesClient, verdict: Verdict) -> Verdict:
        """Add why workers are missing to the end of a job that says only that it lacks nodes."""
        why = (await cluster_news(api, self._claim, WaitingState(latest=""))).state.latest
        if not why or verdict.outcome is None:
            return verdict
        message = f"{verdict.outcome.message} {clean(why)}"
        return replace(verdict, outcome=replace(verdict.outcome, message=message))

    async def _explained(self, api: KubernetesClient, verdict: Verdict) -> Verdict:
        words = await why_silent(api, self._claim, self._ray_cluster())
        if words.cause is not None and is_silent(verdict):
            verdict = replace(verdict, lines=())  # they say that the follower waits for it
        verdict = self._with(verdict, words.lines)
        if words.cause is not None:
            why = words.cause
            outcome = Outcome("failed", why.failure_class, clean(why.message), ended=True)
            return replace(verdict, outcome=outcome)
        if words.lines and verdict.outcome is not None and verdict.outcome.state == "lost":
            told = f"{verdict.outcome.message} {clean(words.lines[0])}"
            return replace(verdict, outcome=replace(verdict.outcome, message=told))
        job = await state(api, self._claim)
        if not self._batch and job is not None and job.job_status == "SUCCEEDED":
            told = "The job finished successfully, as KubeRay says."
            return replace(verdict, outcome=Outcome("succeeded", None, told, ended=True))
        if job is not None and job.terminal and await api.get("RayCluster", job.ray_cluster) is None:
            told = f"The cluster of RayJob {job.name} went before the result of its job was read."
            lost = Outcome("failed", FailureClass.CLUSTER_LOST, told, ended=True)
            return replace(verdict, outcome=lost)
        return verdict

    def untold(self, lines: Iterable[str]) -> list[str]:
        """The lines that were not told before; they are from now on."""
        new = [line for line in lines if line not in self._told]
        self._told.update(new)
        return new

    def _with(self, verdict: Verdict, lines: tuple[str, ...], level: str = "info") -> Verdict:
        new = self.untold(lines)
        told = (FollowedLine(clean(line), "warning" if level == "warning" else "info") for line in new)
        return replace(verdict, lines=(*verdict.lines, *told))
