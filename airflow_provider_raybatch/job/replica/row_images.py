# SPDX-License-Identifier: Apache-2.0
"""The images of rows that are near their turn: fetched and decoded in Ray tasks, then given to the engine.

A task is one row's, so a picture that ends the process that decodes it ends no other row, and no engine. It
requests no CPU, so it never waits for one, and Ray spreads tasks over the cluster, also to nodes without a
GPU.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import ray

from airflow_provider_raybatch.contract.failures import RaybatchError
from airflow_provider_raybatch.contract.text import count_of
from airflow_provider_raybatch.job.engine.images import AT_ONCE
from airflow_provider_raybatch.job.failures.public_reasons import guarded_task
from airflow_provider_raybatch.job.media.allowed import image_access
from airflow_provider_raybatch.job.media.load import Loaded, load
from airflow_provider_raybatch.job.replica.inflight import Row
from airflow_provider_raybatch.job.replica.process import ReplicaProcess
from airflow_provider_raybatch.job.row import Request, RowFailure
from airflow_provider_raybatch.job.work import Stopwatch
from airflow_provider_raybatch.storage.errors import RETRY_LIMITS

_TRIES = 3
"""A task's process may also end since its node is lost or has no memory left."""
_PAUSE, _PAUSE_OF_MEMORY = 1.0, 20.0
"""Seconds before the second try, and twice as many before the third. Memory takes longer to become free."""
_STARTING = 60.0
"""Seconds that a busy node may take to start the process of a task."""
_PATIENCE = RETRY_LIMITS.whole + RETRY_LIMITS.repeat + RETRY_LIMITS.answer
"""Seconds until a store that does not answer fails the job. No row fails by it, so a task may take longer."""
_BUDGET = 256 * 2**20
"""Bytes of pixels that are loaded at the same time, and not yet in the engine."""
_FEWEST, _MOST = 4, 64
"""Rows whose images are loaded at the same time: two for each CPU of the cluster, among these."""
_THREADS = AT_ONCE + 1
"""That give requests their images: the engine works on some, and the next is on its way. In the replica's
threads the others would hold up reading and writing."""
_GUESS = 4 * 2**20
"""Bytes of a row's pixels before any is known."""


class RowImages:
    """Loads the images of one replica's rows.

    :param replica: whose engine gets them.
    :param watch: adds up the seconds of all rows, although many are loaded side by side.
    """

    def __init__(self, replica: ReplicaProcess, watch: Stopwatch) -> None:
        self._replica = replica
        self._watch = watch
        job = replica.job
        access = image_access(job.spec, job.listing, job.credentials)
        self._access = ray.put(access)
        self._seconds = access.timeout
        guarded: Callable[..., Any] = guarded_task(load, job.spec.shows_rows)
        self._task = ray.remote(num_cpus=0, max_retries=0, scheduling_strategy="SPREAD")(guarded)
        cpus = ray.cluster_resources().get("CPU", 1) / max(1, replica.plan.replicas)
        self._at_once = int(min(_MOST, max(_FEWEST, 2 * cpus)))
        self._bytes, self._rows = 0, 0
        self._held = 0
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="raybatch-images")

    @property
    def has_room(self) -> bool:
        """Whether another row may be loaded now, by the pixels of those so far."""
        row = self._bytes / self._rows if self._rows else _GUESS
        return self._held < self._at_once and (not self._held or (self._held + 1) * row <= _BUDGET)

    def load(self, row: Row) -> asyncio.Future[RowFailure | None]:
        """Give a row's request its images, and the row its key.

        The result says why it can't have them. Its errors are those of a storage or an engine that has ended.
        """
        self._held += 1
        return asyncio.ensure_future(self._load(row))

    def entered(self) -> None:
        """A row goes into the engine, which has its images."""
        self._held -= 1

    async def _load(self, row: Row) -> RowFailure | None:
        failure: RowFailure | None = None
        try:
            failure = await self._complete(row)
        finally:
            if failure is not None:
                self._held -= 1
        return failure

    async def _complete(self, row: Row) -> RowFailure | None:
        request = row.prepared.request
        assert isinstance(request, Request)
        start = time.monotonic()
        loaded = await self._loaded(request)
        self._watch.add("load_images", start)
        if isinstance(loaded, RowFailure):
            return loaded
        self._bytes += sum(one.nbytes for one in loaded.pixels)
        self._rows += 1
        prepared = self._replica.questions[row.step].builder.keyed(row.prepared, loaded.images)
        self._replica.begun.begin(row.ordinal)  # the engine's processor reads the pixels, too
        attach = self._replica.engine.attach
        loop = asyncio.get_running_loop()
        attached = await loop.run_in_executor(self._threads, attach, row.encoded, loaded.pixels)
        row.complete(prepared, attached)
        if isinstance(attached, RowFailure):
            self._replica.begun.end([row.ordinal])
            return attached
        return None

    async def _loaded(self, request: Request) -> Loaded | RowFailure:
        limit = _STARTING + _PATIENCE + self._seconds * len(request.images)
        ended = 0
        while True:
            reference = self._task.remote(request.images, self._access)
            try:
                made: Loaded | RowFailure = await asyncio.wait_for(_result(reference), limit)
                return made
            except asyncio.TimeoutError:
                ray.cancel(reference, force=True)
                return RowFailure("media", f"{_which(request)} took longer than {limit:g} seconds to decode")
            except ray.exceptions.RayTaskError as error:
                cause = error.cause
                raise cause if isinstance(cause, RaybatchError) else error from None
            except ray.exceptions.RuntimeEnvSetupError:
                raise  # it is the node's, and would fail each row
            except ray.exceptions.RayError as error:
                ended += 1
                if ended == _TRIES:
                    return RowFailure(
                        "media",
                        f"the process that decodes {_which(request)} ended each of {_TRIES} times; remove "
                        "the row, or write the image again in another format",
                    )
                has_no_memory = isinstance(error, ray.exceptions.OutOfMemoryError)
                await asyncio.sleep(ended * (_PAUSE_OF_MEMORY if has_no_memory else _PAUSE))


async def _result(reference: Any) -> Any:
    return await reference


def _which(request: Request) -> str:
    return f"its {count_of(len(request.images), 'image')}"
