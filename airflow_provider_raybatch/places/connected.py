# SPDX-License-Identifier: Apache-2.0
"""The cluster of a connection of type ``ray``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider_raybatch.hooks.connection import RayConnection
from airflow_provider_raybatch.places.place import Cluster
from airflow_provider_raybatch.places.shared import SharedPlace

if TYPE_CHECKING:
    from airflow_provider_raybatch.cluster.jobs_api.address import ClusterAddress


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
