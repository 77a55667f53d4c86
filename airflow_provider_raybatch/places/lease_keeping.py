# SPDX-License-Identifier: Apache-2.0
"""Keeps a cluster that tasks share while one of their jobs is followed, and tells when it is gone."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

from airflow_provider_raybatch.cluster.follow.outcome import FollowedLine, Outcome, Verdict
from airflow_provider_raybatch.cluster.jobs_api.errors import ClusterError
from airflow_provider_raybatch.cluster.kuberay.shared import SharedRayCluster, keep
from airflow_provider_raybatch.contract.failures import FailureClass
from airflow_provider_raybatch.contract.text import clean
from airflow_provider_raybatch.places.looks import PATIENCE, Looks

if TYPE_CHECKING:
    from airflow_provider_raybatch.places.kubernetes import Kubernetes


class LeaseKeeper:
    """The :class:`~airflow_provider_raybatch.cluster.follow.host.Host` of a job on a shared cluster."""

    def __init__(self, kubernetes: Kubernetes, cluster: SharedRayCluster) -> None:
        self._kubernetes, self._cluster = kubernetes, cluster
        self._looks = Looks()
        self._warned = False

    async def looked(self, verdict: Verdict) -> Verdict:
        """See :meth:`Host.looked`."""
        if not self._looks.due(verdict):
            return verdict
        try:
            async with asyncio.timeout(PATIENCE), self._kubernetes.api() as api:
                gone = await keep(api, self._cluster)
        except (ClusterError, TimeoutError) as error:
            return self._warning(verdict, str(error) or "no answer in time")
        if gone is None:
            return verdict
        # A retry finds no cluster either: only a clear of the task that makes it helps.
        return replace(verdict, outcome=Outcome("failed", FailureClass.USER_ERROR, clean(gone), ended=True))

    def _warning(self, verdict: Verdict, why: str) -> Verdict:
        if self._warned:
            return verdict
        self._warned = True
        told = f"The lease of the shared cluster can't be renewed now: {clean(why)}"
        return replace(verdict, lines=(*verdict.lines, FollowedLine(told, "warning")))
