# SPDX-License-Identifier: Apache-2.0
"""A cleared attempt tells the next one of the clear, through the cluster.

Airflow's store takes nothing from an attempt whose task was cleared while it ran, and its counters may show a
retry to the next one.
"""

from __future__ import annotations

from airflow_provider_raybatch.cluster.jobs_api.address import ClusterAddress
from airflow_provider_raybatch.cluster.jobs_api.client import RayJobsClient
from airflow_provider_raybatch.cluster.jobs_api.errors import ClusterError
from airflow_provider_raybatch.contract.control import cleared_package


async def mark_cleared(address: ClusterAddress, run_key: str) -> None:
    """Tell the run's next attempt that a user has cleared it.

    :raises ClusterError: the cluster does not take it.
    """
    async with RayJobsClient(address) as client:
        await client.upload_package(_uri(run_key), b"cleared")


async def was_cleared(address: ClusterAddress, run_key: str) -> bool:
    """Whether :func:`mark_cleared` was called; ``False`` if the cluster does not say.

    The question makes Ray drop the mark ten minutes later.
    """
    try:
        async with RayJobsClient(address) as client:
            return await client.has_package(_uri(run_key))
    except ClusterError:
        return False


def _uri(run_key: str) -> str:
    return f"gcs://{cleared_package(run_key)}"
