# SPDX-License-Identifier: Apache-2.0
"""`RayHook`: an Airflow connection as a way to a Ray cluster's Jobs API. Needs no Ray installed."""

from __future__ import annotations

from importlib import metadata
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowNotFoundException
from airflow.sdk.log import amask_secret, mask_secret

from airflow_provider_raybatch.cluster.jobs_api.blocking import run_blocking
from airflow_provider_raybatch.exceptions import (
    RayBatchException,
    RayBatchUnavailableException,
    RayConnectionError,
    for_airflow,
)
from airflow_provider_raybatch.hooks.connection import (
    DEFAULT_CONN_ID,
    LOCAL,
    RayConnection,
    read_connection,
)
from airflow_provider_raybatch.hooks.lookup import ConnectionHook

if TYPE_CHECKING:
    from airflow_provider_raybatch.cluster.jobs_api.address import ClusterAddress
    from airflow_provider_raybatch.cluster.jobs_api.client import RayJobsClient
    from airflow_provider_raybatch.cluster.jobs_api.models import ClusterVersion


class RayHook(ConnectionHook):
    """Reaches a Ray cluster as an Airflow connection of type ``ray`` describes it.

    :param ray_conn_id: id of the connection. The host ``local`` in it stands for a private Ray of each task.
    """

    conn_name_attr = "ray_conn_id"
    default_conn_name = DEFAULT_CONN_ID
    conn_type = "ray"
    hook_name = "Ray"

    def __init__(self, ray_conn_id: str = DEFAULT_CONN_ID, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.ray_conn_id = ray_conn_id

    def read(self) -> RayConnection:
        """The connection, validated; its secrets are masked in logs from here on.

        :raises RayConnectionError: a field can't be used, or Airflow denies access to it.
        :raises RayBatchException: it was not found, or Airflow can't read it now; a retry makes sense.
        """
        try:
            connection = self.get_connection(self.ray_conn_id)
        except (AirflowNotFoundException, PermissionError) as error:
            raise self._unusable(error) from error
        found = read_connection(connection)
        for secret in found.secrets:
            mask_secret(secret)
        return found

    async def aread(self) -> RayConnection:
        """As :meth:`read`, without blocking the event loop."""
        try:
            connection = await self.afind_connection(self.ray_conn_id)
        except (AirflowNotFoundException, PermissionError) as error:
            raise self._unusable(error) from error
        found = read_connection(connection)
        for secret in found.secrets:
            await amask_secret(secret)
        return found

    def get_address(self) -> ClusterAddress:
        """Where the cluster is; raises as :meth:`read`, and if the connection names no cluster."""
        return self.read().address()

    async def aget_address(self) -> ClusterAddress:
        """As :meth:`get_address`, without blocking the event loop."""
        return (await self.aread()).address()

    def client(self) -> RayJobsClient:
        """A client of the Jobs API, to be entered with ``async with``; raises as :meth:`get_address`."""
        from airflow_provider_raybatch.cluster.jobs_api.client import RayJobsClient

        return RayJobsClient(self.get_address())

    def get_conn(self) -> RayJobsClient:
        """Airflow's name for :meth:`client`."""
        return self.client()

    def version(self) -> ClusterVersion:
        """Ray's version and session name, as the cluster answers.

        :raises RayBatchException: the cluster can't be reached, or doesn't accept the credentials.
        """
        client = self.client()

        async def ask() -> ClusterVersion:
            async with client:
                return await client.version()

        with for_airflow():
            return run_blocking(ask())

    def test_connection(self) -> tuple[bool, str]:
        """Airflow's "Test" button: asks the cluster for its version, or looks for an installed Ray."""
        try:
            found = self.read()
            if found.embedded:
                return _embedded_ray()
            version = self.version()
        except RayBatchException as error:
            return False, str(error)
        where = f"{found.address().shown}, session {version.session_name}"
        return True, f"Ray {version.ray_version} answers at {where}."

    def _unusable(self, error: Exception) -> RayBatchException:
        if isinstance(error, PermissionError):
            return RayConnectionError(
                f"Connection {self.ray_conn_id!r}: Airflow denies this task access to it; allow it, or use "
                "another ray_conn_id."
            )
        return RayBatchUnavailableException(
            f"Connection {self.ray_conn_id!r} was not found, or Airflow could not read it now; correct "
            f"ray_conn_id, or create it with `airflow connections add {self.ray_conn_id} --conn-type ray "
            f"--conn-host ray-head --conn-port 8265`, or with `--conn-host {LOCAL}` for a private Ray on the "
            "worker.",
        )


def _embedded_ray() -> tuple[bool, str]:
    try:
        version = metadata.version("ray")
    except metadata.PackageNotFoundError:
        return False, (
            "The host is 'local', so each task would start a private Ray, but none is installed here; "
            "name the Ray dashboard's host, or install airflow-provider-raybatch[embedded] on the workers."
        )
    return True, f"The host is 'local', so each task starts a private Ray {version} and ends it."
