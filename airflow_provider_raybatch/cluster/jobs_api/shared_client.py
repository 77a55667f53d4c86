# SPDX-License-Identifier: Apache-2.0
"""One client of the Jobs API per cluster and event loop."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from airflow_provider_raybatch.cluster.jobs_api.address import ClusterAddress
from airflow_provider_raybatch.cluster.jobs_api.client import RayJobsClient
from airflow_provider_raybatch.cluster.jobs_api.sharing import shared


@asynccontextmanager
async def shared_client(address: ClusterAddress) -> AsyncIterator[RayJobsClient]:
    """A client that followers with an equal address share; closed when the last of them leaves.

    :raises SpecError: see :class:`RayJobsClient`.
    """
    key = "jobs_api", address.identity, await address.ca_bundle_version()
    async with shared(key, lambda: RayJobsClient(address)) as client:
        yield client
