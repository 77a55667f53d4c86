# SPDX-License-Identifier: Apache-2.0
"""The cluster of a connection: it was there before the run, and stays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from airflow_provider_raybatch.hooks.connection import RayConnection
from airflow_provider_raybatch.hooks.ray import RayHook
from airflow_provider_raybatch.places.place import Cluster, Place

if TYPE_CHECKING:
    from airflow_provider_raybatch.cluster.submit.resolve import SubmissionKey


class ConnectedPlace(Place):
    """Where a connection of type ``ray`` leads to; with the host ``local``, a private Ray of each task."""

    def __init__(self, connection: RayConnection) -> None:
        self._connection = connection
        self.name = f"Connection {connection.conn_id!r}"
        self.embedded = connection.embedded
        self.namespace = connection.namespace
        self.secret_seal_key = connection.secret_seal_key

    def job_page(self, submission_id: str) -> str | None:
        """See :meth:`Place.job_page`."""
        return self._connection.job_page(submission_id)

    def cluster(self) -> Cluster:
        """See :meth:`Place.cluster`."""
        return Cluster(self._connection.address())

    async def cluster_of(self, run: SubmissionKey) -> Cluster | None:
        """See :meth:`Place.cluster_of`."""
        # What a private Ray ran ended with its attempt.
        return None if self.embedded else self.cluster()

    async def stop_run(self, run: SubmissionKey) -> list[str]:
        """See :meth:`Place.stop_run`."""
        from airflow_provider_raybatch.cluster.follow.loop import stop_jobs_of

        return await stop_jobs_of(self.cluster().address, run)

    async def stop_earlier(
        self, runs: Sequence[SubmissionKey] | None, task_digest: str, keep: str
    ) -> list[str]:
        """See :meth:`Place.stop_earlier`."""
        from airflow_provider_raybatch.cluster.jobs_api.client import RayJobsClient
        from airflow_provider_raybatch.cluster.submit.resolve import stop_older, stop_run

        async with RayJobsClient(self.cluster().address) as client:
            if runs is None:
                return await stop_older(client, task_digest, keep)
            stopped = [await stop_run(client, run) for run in runs]
            return [submission_id for submission_id in stopped if submission_id is not None]

    async def was_cleared(self, run_key: str) -> bool:
        """See :meth:`Place.was_cleared`."""
        from airflow_provider_raybatch.cluster.follow.control import was_cleared

        return not self.embedded and await was_cleared(self.cluster().address, run_key)


def place_of(ray_conn_id: str) -> Place:
    """Where the jobs of a task are.

    :raises RayBatchException: the connection can't be used, or read.
    """
    return ConnectedPlace(RayHook(ray_conn_id).read())


async def aplace_of(ray_conn_id: str) -> Place:
    """As :func:`place_of`, without blocking the event loop."""
    return ConnectedPlace(await RayHook(ray_conn_id).aread())
