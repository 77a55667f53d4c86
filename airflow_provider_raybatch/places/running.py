# SPDX-License-Identifier: Apache-2.0
"""Clusters that were there before a run, and stay: a connection's, and a RayCluster by its name."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from airflow_provider_raybatch.hooks.connection import RayConnection
from airflow_provider_raybatch.places.place import STOP_TIMEOUT, Cluster, LatestJob, OneRun, Order, Place

if TYPE_CHECKING:
    from airflow_provider_raybatch.cluster.follow.loop import Log
    from airflow_provider_raybatch.cluster.jobs_api.address import ClusterAddress
    from airflow_provider_raybatch.cluster.submit.resolve import Submitted
    from airflow_provider_raybatch.places.kubernetes import Kubernetes


class SharedPlace(Place):
    """A cluster of others'."""

    @abstractmethod
    async def cluster(self) -> Cluster:
        """The cluster.

        :raises RayConnectionError: there is none.
        """

    async def submit(self, order: Order) -> Submitted:
        """See :meth:`Place.submit`."""
        from airflow_provider_raybatch.cluster.jobs_api.client import RayJobsClient
        from airflow_provider_raybatch.cluster.submit.resolve import submit_or_adopt

        cluster = await self.cluster()
        order.on_cluster(cluster)
        async with RayJobsClient(cluster.address) as client:
            return await submit_or_adopt(
                client,
                order.run.key,
                order.fingerprint,
                partial(order.build, client),
                order.on_stale_state,
                None if order.finished is None else partial(order.finished, client),
            )

    async def latest_job(self, run: OneRun) -> LatestJob | None:
        """See :meth:`Place.latest_job`."""
        from airflow_provider_raybatch.cluster.follow.loop import latest_job
        from airflow_provider_raybatch.cluster.submit.resolve import FINGERPRINT

        cluster = await self.cluster_of(run)
        job = None if cluster is None else await latest_job(cluster.address, run.key)
        if cluster is None or job is None:
            return None
        return LatestJob(cluster, job.submission_id, job.metadata.get(FINGERPRINT))

    async def cluster_of(self, run: OneRun, *, batch: bool = True) -> Cluster | None:
        """See :meth:`Place.cluster_of`."""
        # What a private Ray ran ended with its attempt.
        return None if self.embedded else await self.cluster()

    async def stop_run(self, run: OneRun, log: Log, timeout: float = STOP_TIMEOUT) -> list[str]:  # noqa: ASYNC109 - handed on
        """See :meth:`Place.stop_run`."""
        from airflow_provider_raybatch.cluster.follow.loop import stop_jobs_of

        return await stop_jobs_of((await self.cluster()).address, run.key, timeout)

    async def stop_earlier(
        self, earlier: Sequence[OneRun] | None, run: OneRun, keep: str, log: Log
    ) -> list[str]:
        """See :meth:`Place.stop_earlier`."""
        from airflow_provider_raybatch.cluster.jobs_api.client import RayJobsClient
        from airflow_provider_raybatch.cluster.submit.resolve import stop_older, stop_run

        async with RayJobsClient((await self.cluster()).address) as client:
            if earlier is None:
                return await stop_older(client, run.key.task.digest, keep)
            stopped = [await stop_run(client, one.key) for one in earlier]
            return [submission_id for submission_id in stopped if submission_id is not None]

    async def mark_cleared(self, run: OneRun) -> None:
        """See :meth:`Place.mark_cleared`."""
        from airflow_provider_raybatch.cluster.follow.control import mark_cleared

        if run.secret:
            await mark_cleared((await self.cluster()).address, run.secret)

    async def was_cleared(self, run: OneRun) -> bool:
        """See :meth:`Place.was_cleared`."""
        from airflow_provider_raybatch.cluster.follow.control import was_cleared

        known = bool(run.secret) and not self.embedded
        return known and await was_cleared((await self.cluster()).address, run.secret)


class ConnectedPlace(SharedPlace):
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
        """See :meth:`SharedPlace.cluster`."""
        if self._private is not None:
            return Cluster(self._private)
        connection = self._connection
        return Cluster(connection.address(), connection.dashboard_url or connection.url)

    def at(self, private: ClusterAddress) -> ConnectedPlace:
        """The same, with the private Ray that the task has started."""
        return ConnectedPlace(self._connection, private)


class NamedPlace(SharedPlace):
    """The RayCluster that `name` of a definition names."""

    def __init__(self, kubernetes: Kubernetes) -> None:
        self.kubernetes = kubernetes
        self.name = f"RayCluster {kubernetes.definition.name!r}"

    async def cluster(self) -> Cluster:
        """See :meth:`SharedPlace.cluster`."""
        from airflow_provider_raybatch.cluster.jobs_api.errors import UserClusterError
        from airflow_provider_raybatch.cluster.kuberay.reach import existing_address, token_of
        from airflow_provider_raybatch.cluster.kuberay.shared import SharedRayCluster, keep
        from airflow_provider_raybatch.places.keeping import LeaseKeeper

        of = self.kubernetes
        shared = of.definition if isinstance(of.definition, SharedRayCluster) else None
        async with of.api() as api:
            if shared is not None and (gone := await keep(api, shared)) is not None:
                raise UserClusterError(gone)
            address = await existing_address(
                api, of.server, str(of.definition.name), of.definition.dashboard_address
            )
        token = token_of(address)
        host = None if shared is None else LeaseKeeper(of, shared)
        secrets = (token,) if token else ()
        return Cluster(address, of.page(address), secrets, of.definition.to_json(), host)
