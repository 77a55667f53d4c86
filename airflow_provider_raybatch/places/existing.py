# SPDX-License-Identifier: Apache-2.0
"""Clusters that exist before a run and stay: that of a connection, and those that providers find."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from airflow_provider_raybatch.hooks.connection import RayConnection
from airflow_provider_raybatch.places.place import (
    STOP_TIMEOUT,
    Cluster,
    LatestJob,
    Place,
    RunRef,
    SubmitRequest,
)

if TYPE_CHECKING:
    from airflow_provider_raybatch.cluster.follow.loop import Log
    from airflow_provider_raybatch.cluster.jobs_api.address import ClusterAddress
    from airflow_provider_raybatch.cluster.submit.resolve import Submitted


class ExistingCluster(Place):
    """A cluster that exists, whoever ends it."""

    @abstractmethod
    async def cluster(self) -> Cluster:
        """The cluster.

        :raises RayConnectionError: there is none.
        """

    async def submit(self, request: SubmitRequest) -> Submitted:
        """See :meth:`Place.submit`."""
        from airflow_provider_raybatch.cluster.jobs_api.client import RayJobsClient
        from airflow_provider_raybatch.cluster.submit.resolve import submit_or_adopt

        cluster = await self.cluster()
        request.on_cluster(cluster)
        async with RayJobsClient(cluster.address) as client:
            return await submit_or_adopt(
                client,
                request.run.key,
                request.fingerprint,
                partial(request.build, client),
                request.on_stale_state,
                None if request.finished is None else partial(request.finished, client),
            )

    async def latest_job(self, run: RunRef) -> LatestJob | None:
        """See :meth:`Place.latest_job`."""
        from airflow_provider_raybatch.cluster.follow.loop import latest_job
        from airflow_provider_raybatch.cluster.submit.resolve import FINGERPRINT

        cluster = await self.cluster_of(run)
        job = None if cluster is None else await latest_job(cluster.address, run.key)
        if cluster is None or job is None:
            return None
        return LatestJob(cluster, job.submission_id, job.metadata.get(FINGERPRINT))

    async def cluster_of(self, run: RunRef, *, batch: bool = True) -> Cluster | None:
        """See :meth:`Place.cluster_of`."""
        # What a private Ray ran ended with its attempt.
        return None if self.embedded else await self.cluster()

    async def stop_run(self, run: RunRef, log: Log, timeout: float = STOP_TIMEOUT) -> list[str]:  # noqa: ASYNC109 - handed on
        """See :meth:`Place.stop_run`."""
        from airflow_provider_raybatch.cluster.follow.loop import stop_jobs_of

        return await stop_jobs_of((await self.cluster()).address, run.key, timeout)

    async def stop_earlier(
        self, earlier: Sequence[RunRef] | None, run: RunRef, keep: str, log: Log
    ) -> list[str]:
        """See :meth:`Place.stop_earlier`."""
        from airflow_provider_raybatch.cluster.jobs_api.client import RayJobsClient
        from airflow_provider_raybatch.cluster.submit.resolve import stop_older, stop_run

        async with RayJobsClient((await self.cluster()).address) as client:
            if earlier is None:
                return await stop_older(client, run.key.task.digest, keep)
            stopped = [await stop_run(client, one.key) for one in earlier]
            return [submission_id for submission_id in stopped if submission_id is not None]

    async def mark_cleared(self, run: RunRef) -> None:
        """See :meth:`Place.mark_cleared`."""
        from airflow_provider_raybatch.cluster.follow.control import mark_cleared

        if run.secret:
            await mark_cleared((await self.cluster()).address, run.secret)

    async def was_cleared(self, run: RunRef) -> bool:
        """See :meth:`Place.was_cleared`."""
        from airflow_provider_raybatch.cluster.follow.control import was_cleared

        known = bool(run.secret) and not self.embedded
        return known and await was_cleared((await self.cluster()).address, run.secret)


class ConnectedCluster(ExistingCluster):
    """Where a connection leads to; with the host ``local``, a private Ray of each task.

    :param private: of the private Ray that the task has started.
    """

    has_prices = True

    def __init__(self, connection: RayConnection, private: ClusterAddress | None = None) -> None:
        self._connection = connection
        self._private = private
        self.name = f"Connection {connection.conn_id!r}"
        self.embedded = connection.embedded
        self.namespace = connection.namespace
        self.secret_seal_key = connection.secret_seal_key
        self.gpu_hour_price, self.currency = connection.gpu_hour_price, connection.currency

    def job_page(self, submission_id: str) -> str | None:
        """The job's page in the Ray dashboard, for people; ``None`` for a private Ray."""
        return self._connection.job_page(submission_id)

    async def cluster(self) -> Cluster:
        """See :meth:`ExistingCluster.cluster`."""
        if self._private is not None:
            return Cluster(self._private)
        connection = self._connection
        return Cluster(connection.address(), connection.dashboard_url or connection.url)

    def at(self, private: ClusterAddress) -> ConnectedCluster:
        """The same, with the private Ray that the task has started."""
        return ConnectedCluster(self._connection, private)
