# SPDX-License-Identifier: Apache-2.0
"""What the routes of one app share: the store, the threads that call it, limits, and what was read lately.

A cache never says that something exists. Files are looked up in storage with each request, so that a deleted
one is gone at once at all servers; only the content of documents that are written once is kept. Batches that
have ended are kept with the store, which is made anew every ten minutes: no client can delete one.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Annotated, Any, Concatenate, NamedTuple, ParamSpec, TypeVar

from fastapi import Depends, Request

from airflow_provider_raybatch.batch_api.server.access import Caller, authenticated
from airflow_provider_raybatch.batch_api.server.limits import ApiLimits, RequestRate
from airflow_provider_raybatch.batch_api.server.objects import OpenAiError, come_back
from airflow_provider_raybatch.batch_api.server.transfers import TransferSlots
from airflow_provider_raybatch.batch_api.server.upkeep import Upkeep
from airflow_provider_raybatch.batch_api.store.settings import BatchApiSettings
from airflow_provider_raybatch.batch_api.store.store import BatchStore, KnownDocuments, batch_store
from airflow_provider_raybatch.contract.failures import RaybatchError
from airflow_provider_raybatch.plugins.web import CrowdedError, OwnThreads

P = ParamSpec("P")
T = TypeVar("T")

_log = logging.getLogger(__name__)

_FRESH = 600.0
"""Seconds for which a connection's credentials are used; those of a role last 15 minutes or more."""


class ShownFile(NamedTuple):
    """A file's owner, and the file as its owner sees it."""

    owner: str
    shown: dict[str, Any]


class BatchService:
    """The store of an app, called in threads of its own.

    :param settings: where files and batches lie.
    :param limits: of each user.
    """

    def __init__(self, settings: BatchApiSettings, limits: ApiLimits) -> None:
        self.settings, self.limits = settings, limits
        self.rate = RequestRate(limits.requests_per_minute)
        self.upkeep = Upkeep()
        # An upload to a bucket has up to 40 MB in memory, a download 4 MB.
        self.uploads = TransferSlots("uploads", at_once=24, of_user=8)
        self.downloads = TransferSlots("downloads", at_once=64, of_user=16)
        self.shown_files = KnownDocuments(20_000)  # more than a page, which would else push out its beginning
        """A :class:`ShownFile` by the id of the file."""
        self.deleted_files = KnownDocuments()
        """When a file was created that a user has deleted, by ``<user>/<file>``."""
        self._threads = OwnThreads("raybatch-batches", threads=16, waiting=200, seconds=60)
        # Each call of Airflow's API holds a connection to the database, of 15 by default. Where all are held,
        # the check of a token waits for one in the event loop, so that none of them can end.
        self._creators = OwnThreads("raybatch-creates", threads=4, waiting=200, seconds=60)
        self._lock = threading.Lock()
        self._store: BatchStore | None = None
        self._stale_at = 0.0

    async def call(
        self, function: Callable[Concatenate[BatchStore, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """What `function` returns for the store and `args`, called in a thread.

        :raises OpenAiError: 503, too many calls wait, or storage does not answer.
        """
        return await self._run(self._threads, lambda store: function(store, *args, **kwargs))

    async def create(self, function: Callable[[BatchStore], T]) -> T:
        """As :meth:`call`, for what asks Airflow: few at once, which leave the other threads to polls."""
        return await self._run(self._creators, function)

    async def _run(self, threads: OwnThreads, function: Callable[[BatchStore], T]) -> T:
        try:
            return await threads.run(lambda: function(self.store()))
        except CrowdedError:
            raise come_back(503, "The server has too many requests just now; try again.") from None
        except TimeoutError:
            raise come_back(503, "Storage did not answer in time; try again.") from None
        except RaybatchError as error:
            _log.error("The Batch API can't do its work: %s", error)
            raise OpenAiError(
                503, "The Batch API can't do this just now; the log of Airflow's API server says why."
            ) from error

    def store(self) -> BatchStore:
        """The store; it blocks while credentials are renewed.

        :raises RaybatchError: the connection of the bucket can't be used.
        """
        with self._lock:
            if self._store is None or time.monotonic() >= self._stale_at:
                self._store = batch_store(self.settings)
                self._stale_at = time.monotonic() + _FRESH
            return self._store


def _service(request: Request) -> BatchService:
    service: BatchService = request.app.state.service
    return service


ServiceDep = Annotated[BatchService, Depends(_service)]


async def _admitted(request: Request, service: ServiceDep) -> Caller:
    caller = await authenticated(request)
    service.rate.take(caller.id)
    return caller


CallerDep = Annotated[Caller, Depends(_admitted)]
"""The user who calls; requests of others, and too many of one, are refused before anything is read."""
