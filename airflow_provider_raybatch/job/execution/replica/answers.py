# SPDX-License-Identifier: Apache-2.0
"""Requests in flight, and their responses as they come: in batches, but none kept waiting for long."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.job.engine.base import Engine, EngineDeadError, failures_apart
from airflow_provider_raybatch.job.monitor.board import ReplicaReport
from airflow_provider_raybatch.job.row import Request, Response, RowFailure
from airflow_provider_raybatch.job.tasks.registry import task_of
from airflow_provider_raybatch.job.work import Stopwatch

_TICK = 1.0

Result = Response | RowFailure


class Answers:
    """Asks the engine of one replica.

    :param thread: runs a function of the engine's tokenizer beside the event loop.
    :param draining: whether finished rows are wanted now, and the others not at all.
    """

    def __init__(
        self,
        engine: Engine,
        spec: BatchInferenceSpec,
        report: ReplicaReport,
        thread: Callable[..., Awaitable[Any]],
        draining: Callable[[], bool],
    ) -> None:
        self._engine = engine
        self._spec = spec
        self._task = task_of(spec)
        self._report = report
        self._thread = thread
        self._draining = draining

    async def to(self, requests: Mapping[int, Request], watch: Stopwatch) -> AsyncIterator[dict[int, Result]]:
        """Results by the keys of `requests`, each once, in as few batches as `flush_interval` allows.

        :raises EngineDeadError: after what was finished has been given out.
        """
        places = list(requests)
        start = time.monotonic()
        encoded = await self._thread(self._engine.encode, [requests[place] for place in places])
        watch.add("tokenize", start)
        unfit, fit = failures_apart(encoded)
        self._report.rows += len(unfit)
        early: dict[int, Result] = {places[number]: failure for number, failure in unfit.items()}
        self._report.first_request = self._report.first_request or time.time()
        flight = _Flight({places[number]: self._generate(encoded[number]) for number in fit})
        start = time.monotonic()
        try:
            while early or not flight.is_settled:
                await flight.wait(min(_TICK, self._spec.flush_interval))
                # What lands from here on, while a batch is decoded and written, is for the next round.
                error = flight.error
                ends = flight.is_over or error is not None or self._draining()
                if ends or flight.waits_for() >= self._spec.flush_interval:
                    watch.add("generate", start)
                    batch = {**early, **await self._decoded(flight.take(), requests, watch)}
                    early = {}
                    if batch:
                        yield batch
                    start = time.monotonic()
                if error is not None:
                    raise error
                if ends:
                    return
        finally:
            await flight.cancel()

    async def _generate(self, encoded: Any) -> Any:
        raw = await self._engine.generate(encoded)
        self._report.rows += 1
        if not isinstance(raw, RowFailure):
            # Now, not when it is written, which may be a minute later.
            asked, answered = self._engine.tokens(raw)
            self._report.input_tokens += asked
            self._report.output_tokens += answered
        return raw

    async def _decoded(
        self, raw: dict[int, Any], requests: Mapping[int, Request], watch: Stopwatch
    ) -> dict[int, Result]:
        start = time.monotonic()
        places = list(raw)
        failed, good = failures_apart([raw[place] for place in places])
        responses = await self._thread(self._engine.decode, [raw[places[number]] for number in good])
        watch.add("detokenize", start)
        results: dict[int, Result] = {places[number]: failure for number, failure in failed.items()}
        for number, response in zip(good, responses, strict=True):
            place = places[number]
            results[place] = self._task.check(response, requests[place].sampling)
        return results


class _Flight:
    """Coroutines that run together, each under a number."""

    def __init__(self, coroutines: Mapping[int, Any]) -> None:
        self._tasks = {asyncio.ensure_future(one): number for number, one in coroutines.items()}
        self._left = len(self._tasks)
        self._finished: dict[int, Any] = {}
        self._since = 0.0
        self._over = asyncio.Event()
        self.error: BaseException | None = None
        for task in self._tasks:
            task.add_done_callback(self._landed)
        if not self._left:
            self._over.set()

    @property
    def is_over(self) -> bool:
        """Whether nothing is in flight any more."""
        return self._left == 0

    @property
    def is_settled(self) -> bool:
        """Whether everything has landed, was taken, and went well."""
        return self.is_over and not self._finished and self.error is None

    def waits_for(self) -> float:
        """Seconds since the oldest result that was not taken."""
        return time.monotonic() - self._since if self._finished else 0.0

    async def wait(self, seconds: float) -> None:
        """Wait until all have landed, one has failed, or the time is over."""
        try:
            await asyncio.wait_for(self._over.wait(), seconds)
        except asyncio.TimeoutError:
            return

    def take(self) -> dict[int, Any]:
        """What has landed since the last time."""
        taken, self._finished = self._finished, {}
        return taken

    async def cancel(self) -> None:
        """End what is still in flight."""
        flying = [task for task in self._tasks if not task.done()]
        for task in flying:
            task.cancel()
        await asyncio.gather(*flying, return_exceptions=True)

    def _landed(self, task: asyncio.Future[Any]) -> None:
        self._left -= 1
        if task.cancelled():
            return
        error = task.exception()
        if error is None:
            if not self._finished:
                self._since = time.monotonic()
            self._finished[self._tasks[task]] = task.result()
        elif self.error is None or isinstance(error, EngineDeadError):
            self.error = error
        if not self._left or self.error is not None:
            self._over.set()
