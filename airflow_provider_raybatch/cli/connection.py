# SPDX-License-Identifier: Apache-2.0
"""Where the cluster of an Airflow connection is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider_raybatch.cli.quiet import quietly
from airflow_provider_raybatch.hooks.connection import DEFAULT_CONN_ID
from airflow_provider_raybatch.hooks.ray import RayHook

if TYPE_CHECKING:
    from airflow_provider_raybatch.cluster.jobs_api.address import ClusterAddress


def address_of(conn_id: str | None) -> ClusterAddress:
    """The address that a connection has.

    :param conn_id: by default ``ray_default``.
    :raises RayConnectionError: a field of it can't be used, or it names no cluster.
    :raises RayBatchException: it was not found.
    """
    return quietly(RayHook(conn_id or DEFAULT_CONN_ID).get_address)
