# SPDX-License-Identifier: Apache-2.0
"""What Airflow connections say, without the lines that Airflow logs of them: stdout may be a file of rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from airflow_provider_raybatch.cli.quiet import quietly
from airflow_provider_raybatch.dataset import s3_credentials
from airflow_provider_raybatch.hooks.connection import DEFAULT_CONN_ID

if TYPE_CHECKING:
    from airflow_provider_raybatch.cluster.jobs_api.address import ClusterAddress
    from airflow_provider_raybatch.contract.secrets import AwsCredentials

Result = TypeVar("Result")


def s3_access(place: str, aws_conn_id: str | None) -> AwsCredentials | None:
    """The credentials for a location, if it is in S3 and a connection is named.

    :raises RayConnectionError: the connection can't be used.
    """
    return quietly_with(aws_conn_id, lambda: s3_credentials(place, aws_conn_id))


def quietly_with(aws_conn_id: str | None, call: Callable[[], Result]) -> Result:
    """What `call` returns, which reads a connection if one is named."""
    # Without one, Airflow is not needed, and importing it takes seconds.
    return call() if aws_conn_id is None else quietly(call)


def address_of(conn_id: str | None) -> ClusterAddress:
    """The address that a connection has.

    :param conn_id: by default ``ray_default``.
    :raises RayConnectionError: a field of it can't be used, or it names no cluster.
    :raises RayBatchException: it was not found.
    """
    from airflow_provider_raybatch.hooks.ray import RayHook

    return quietly(RayHook(conn_id or DEFAULT_CONN_ID).get_address)
