# SPDX-License-Identifier: Apache-2.0
"""Keeps a cluster that tasks share while one of their jobs is followed, and tells when it is gone."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from airflow_provider_raybatch.cluster.follow.outcome import FollowedLine, Outcome, Verdict
from airflow_provider_raybatch.cluster.jobs_api.errors import ClusterError
from airflow_provider_raybatch.cluster.kuberay.shared import SharedRayCluster, keep
from airflow_provider_raybatch.contract.failures import FailureClass
from airflow_provider_raybatch.contract.text import clean

if TYPE_CHECKING:
    from airflow_provider_raybatch.places.kubernetes import Kubernetes

_LOOK_SECONDS = 30.0
_ASK_SECONDS = 10.0
_PATIENCE = 20.0
"""Seconds for one look, since the next poll of the job waits for it."""
_LOST = frozenset({"lost", "deleted", "unreachable"})


class LeaseKeeper:
    """The :class:`~airflow_provider_raybatch.cluster.follow.host.Host` of a job on a shared cluster."""

    def __init__(self, kubernetes: Kubernetes, cluster: SharedRayCluster) -> None:
        self._kubernetes, self._cluster = kubernetes, cluster
        self._next = {False: 0.0, True: 0.0}  # when it is asked again, by whether the cluster is silent
        self._warned = False

    async def looked(self, verdict: Verdict) -> Verdict:
        """See :meth:`Host.looked`."""
        outcome, silent = verdict.outcome, verdict.state.unreachable_since is not None
        if outcome is not None and outcome.state not in _LOST:
            return verdict
        now = time.monotonic()
        if outcome is None and now < self._next[silent]:
            return verdict
        self._next[silent] = now + (_ASK_SECONDS if silent else _LOOK_SECONDS)
        try:
            async with asyncio.timeout(_PATIENCE), self._kubernetes.api() as api:
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
