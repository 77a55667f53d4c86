# SPDX-License-Identifier: Apache-2.0
"""One client per cluster and event loop: a thousand jobs need neither as many pools nor TLS contexts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from weakref import WeakKeyDictionary

from airflow_provider_raybatch.cluster.jobs_api.address import ClusterAddress
from airflow_provider_raybatch.cluster.jobs_api.client import RayJobsClient


class _Shared:
    def __init__(self, address: ClusterAddress) -> None:
        self.client = RayJobsClient(address)
        self.users = 0
        self.is_open = False
        self.opening = asyncio.Lock()


_CLIENTS: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[object, _Shared]] = WeakKeyDictionary()


@asynccontextmanager
async def shared_client(address: ClusterAddress) -> AsyncIterator[RayJobsClient]:
    """A client that followers with an equal address share; closed when the last of them leaves.

    :raises SpecError: see :class:`RayJobsClient`.
    """
    clients = _CLIENTS.setdefault(asyncio.get_running_loop(), {})
    key = address.identity, await address.ca_bundle_version()
    shared = clients.get(key)
    if shared is None:
        shared = clients[key] = _Shared(address)
    shared.users += 1
    try:
        async with shared.opening:
            if not shared.is_open:
                await shared.client.__aenter__()
                shared.is_open = True
        yield shared.client
    finally:
        shared.users -= 1
        if not shared.users:
            del clients[key]
            if shared.is_open:
                # In a separate task, since Airflow cancels a trigger repeatedly until it has ended.
                await asyncio.shield(asyncio.ensure_future(shared.client.__aexit__()))
