# SPDX-License-Identifier: Apache-2.0
"""One open client per server and event loop: a thousand jobs need neither as many pools nor TLS contexts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, TypeVar, cast
from weakref import WeakKeyDictionary

from airflow_provider_raybatch.cluster.jobs_api.address import ClusterAddress
from airflow_provider_raybatch.cluster.jobs_api.client import RayJobsClient

Client = TypeVar("Client", bound=AbstractAsyncContextManager[Any])


class _Shared:
    def __init__(self, client: AbstractAsyncContextManager[Any]) -> None:
        self.client = client
        self.users = 0
        self.is_open = False
        self._opening = asyncio.Lock()

    @asynccontextmanager
    async def use(self) -> AsyncIterator[None]:
        """Count a user, and let the first one open the client."""
        self.users += 1
        try:
            async with self._opening:
                if not self.is_open:
                    await self.client.__aenter__()
                    self.is_open = True
            yield
        finally:
            self.users -= 1


_CLIENTS: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[object, _Shared]] = WeakKeyDictionary()


@asynccontextmanager
async def shared(key: object, make: Callable[[], Client]) -> AsyncIterator[Client]:
    """The client that all users of `key` in this event loop share; closed when the last of them leaves."""
    clients = _CLIENTS.setdefault(asyncio.get_running_loop(), {})
    found = clients.get(key)
    if found is None:
        found = clients[key] = _Shared(make())
    try:
        async with found.use():
            yield cast("Client", found.client)
    finally:
        if not found.users:
            del clients[key]
            if found.is_open:
                # In a separate task, since Airflow cancels a trigger repeatedly until it has ended.
                await asyncio.shield(asyncio.ensure_future(found.client.__aexit__(None, None, None)))


@asynccontextmanager
async def shared_client(address: ClusterAddress) -> AsyncIterator[RayJobsClient]:
    """A client that followers with an equal address share; closed when the last of them leaves.

    :raises SpecError: see :class:`RayJobsClient`.
    """
    key = "jobs_api", address.identity, await address.ca_bundle_version()
    async with shared(key, lambda: RayJobsClient(address)) as client:
        yield client
