# SPDX-License-Identifier: Apache-2.0
"""One cluster for all jobs: it was there before a run, and stays."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from airflow_provider_raybatch.places.place import STOP_TIMEOUT, Cluster, LatestJob, OneRun, Order, Place

if TYPE_CHECKING:
    from airflow_provider_raybatch.cluster.follow.loop import Log
    from airflow_provider_raybatch.cluster.submit.resolve import Submitted


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
