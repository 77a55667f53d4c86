# SPDX-License-Identifier: Apache-2.0
"""A replica: one engine in a Ray Data actor. The way of a row, from source to part, in one place.

It asks the coordinator for rows when it holds fewer than its engine can run, and some more. Everything but
the engine runs in threads, and only counts and ordinals pass between replica and coordinator, so the engine
never waits for a hop. What is finished is written together, one part each `flush_interval`.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import secrets
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np
import ray

from airflow_provider_raybatch.contract.arguments.limits import Limits
from airflow_provider_raybatch.contract.failures import FailureClass, RaybatchError
from airflow_provider_raybatch.job.control.private_package import set_environment
from airflow_provider_raybatch.job.engine.base import EngineDeadError
from airflow_provider_raybatch.job.engine.opening import open_engine
from airflow_provider_raybatch.job.execution.calls import GoneError, Report, no_rows
from airflow_provider_raybatch.job.execution.coordinator import Order, stem
from airflow_provider_raybatch.job.execution.replica import loading
from airflow_provider_raybatch.job.execution.replica.asking import Asker, read_columns
from airflow_provider_raybatch.job.execution.replica.begun import BegunRows, left_by_the_last, path_of
from airflow_provider_raybatch.job.execution.replica.flight import Flight, Row
from airflow_provider_raybatch.job.execution.replica.gpu import GpuMeter
from airflow_provider_raybatch.job.execution.replica.preparing import Preparer
from airflow_provider_raybatch.job.input.chunk_rows import portions
from airflow_provider_raybatch.job.input.reader import Reader
from airflow_provider_raybatch.job.monitor.board import ReplicaReport, Reporter
from airflow_provider_raybatch.job.monitor.metrics import Metrics
from airflow_provider_raybatch.job.parts import part as parts
from airflow_provider_raybatch.job.planning.plan import Plan
from airflow_provider_raybatch.job.row import Response, RowFailure
from airflow_provider_raybatch.job.work import Done, Job, Stopwatch

T = TypeVar("T")

_THREADS = 8
_TOKENIZER_THREADS = 2
"""More would only contend for Python's lock, and vLLM copies its tokenizer for each that uses it at the same
time: a quarter of a second for a vocabulary of 128,000, in which no request moves."""
_ENGINE_DIED = 70
"""Exit status of a replica whose engine died (EX_SOFTWARE): Ray restarts the actor and repeats its task."""
_LEAST_PAUSE = 0.2
_IDLE_PAUSE = 0.5
"""Seconds between two calls of the coordinator: while it has rows to give, and while it has none."""
_TICK = 1.0
_KILLER = RowFailure("engine", "the engine's process dies of this row, and did so with this row alone in it")


class Replica:
    """The class that ``Dataset.map_batches`` runs as an actor.

    :param board: handle of the :class:`~airflow_provider_raybatch.job.execution.coordinator.Coordinator`.
    :raises RaybatchError: the engine can't be started, or dies each time before it has finished a row.
    """

    def __init__(self, job: Job, plan: Plan, board: Any) -> None:
        began = time.time()
        set_environment(job.environment)
        self._job = job
        self._plan = plan
        self._board = board
        self._actor = _actor()
        # In another container, process numbers begin anew.
        self._process = f"{self._actor}-{os.getpid()}-{secrets.token_hex(4)}"
        self._report = ReplicaReport(replica=self._process, node=_node())
        self._metrics = Metrics(job.spec.submission, self._process)
        self._gpu: GpuMeter | None = None
        self._draining = threading.Event()
        self._asked_to_ask = threading.Event()
        self._flight: Flight | None = None
        self._parts = 0
        self._has_left = False
        self._reporter = Reporter(
            board, self._report, self._measure, self._draining.set, self._asked_to_ask.set
        )
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="raybatch")
        self._tokenizers = ThreadPoolExecutor(_TOKENIZER_THREADS, thread_name_prefix="raybatch-tokenizer")
        with self._reporter.telling():
            self._check_starts()
            if not self._is_needed():
                self._leave()
                return
            self._reader = Reader(job.listing, read_columns(job.spec), job.credentials)
            self._asker = Asker(job.spec, job.task.renderer(), job.keyer)
            self._engine = open_engine(job.spec, plan.spans_nodes)
        self._gpu = GpuMeter()
        board.describe.remote(self._engine.info)
        self._report.startup_seconds = round(time.time() - began, 2)
        self._cpu_before = time.process_time()
        self._report.state = "ready"
        self._reporter.send()

    def _check_starts(self) -> None:
        path = path_of(self._job.folder.uri, self._actor)
        begun = left_by_the_last(path)
        self._begun = BegunRows(path)
        in_vain = ray.get(self._board.start.remote(self._actor, self._process, begun))
        most = self._job.spec.max_restarts
        if in_vain > most:
            raise RaybatchError(
                f"max_restarts: the engine died again and again without finishing a row, more often than the "
                f"{most} times allowed; its log on the cluster says why.",
                FailureClass.ENGINE_DEAD,
            )

    def _is_needed(self) -> bool:
        return bool(ray.get(self._board.is_needed.remote(self._process, _name())))

    def _leave(self) -> None:
        """Take no more part: its GPUs are free, or will be when Ray Data ends the actor without a ticket."""
        self._has_left = True
        self._begun.remove()
        self._report.state = "ended"
        self._reporter.send()

    def _measure(self) -> None:
        if self._has_left:
            return
        if self._report.state == "starting":
            self._report.loaded = loading.steps()
        else:
            self._report.tokens_in_flight = self._engine.tokens_in_flight()
        if self._gpu is not None:
            self._gpu.sample()
            self._report.gpu_utilization = self._gpu.mean
        if self._draining.is_set() and self._flight is None:
            self._report.state = "drained"
        self.count()

    def count(self) -> None:
        """Bring Ray's metrics up to date."""
        flight = self._flight
        self._metrics.update(self._report, len(flight.inside) if flight else 0)

    async def __call__(self, batch: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        """Work until every row of the input is written; a ticket each for whoever comes."""
        for number in batch["ticket"]:
            if not self._has_left:
                with self._reporter.telling():
                    await self._work()
            yield {"ticket": [number]}

    async def _work(self) -> None:
        shift = _Shift(self)
        try:
            await shift.work()
        except GoneError:
            os._exit(_ENGINE_DIED)  # others have its rows: begin anew
        if shift.leaves:
            await self.thread(self._engine.close)
            self._leave()

    def write(self, rows: Sequence[Row]) -> list[parts.Part]:
        """One part, unless its rows are very large or of several types."""
        task = self._job.task
        ordered = sorted(rows, key=lambda row: row.ordinal)
        written = []
        for places, table in portions([(row.rows, row.place) for row in ordered]):
            self._parts += 1
            outcomes = [
                ordered[place].asked.outcome(ordered[place].ordinal, ordered[place].result)
                for place in places
            ]
            name = stem(self._job.part_folder, self._process, f"{self._parts:06d}")
            written.append(parts.write(self._job.folder, name, table, outcomes, task))
        return written

    def decode(self, rows: Sequence[Row]) -> None:
        """Make results of what the engine gave."""
        raw = [row for row in rows if not isinstance(row.result, RowFailure)]
        for row, response in zip(raw, self._engine.decode([row.result for row in raw]), strict=True):
            row.result = self._checked(row, response)

    def _checked(self, row: Row, response: Response) -> Response | RowFailure:
        return self._job.task.check(response, row.asked.request.sampling)  # type: ignore[union-attr]

    async def thread(self, function: Callable[..., T], *args: Any) -> T:
        """Run a function beside the event loop."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, function, *args)

    async def tokenizer_thread(self, function: Callable[..., T], *args: Any) -> T:
        """Run a function of the engine's tokenizer beside the event loop."""
        return await asyncio.get_running_loop().run_in_executor(self._tokenizers, function, *args)


class _Shift:
    """The time in which a replica works: from the first call of the coordinator to the last."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._board = replica._board
        self._process = replica._process
        self._report = replica._report
        self._limits: Limits = replica._job.spec
        self._wake = asyncio.Event()
        self._watch = Stopwatch()
        plan = replica._plan
        self._slots = plan.rows_in_engine
        self._flight = replica._flight = Flight(
            replica._engine,
            self._report,
            self._slots,
            plan.grows,
            self._watch,
            self._wake.set,
            replica._begun,
        )
        self._preparer = Preparer(
            replica._reader,
            replica._asker,
            replica._engine,
            self._flight,
            plan.rows_per_chunk,
            replica.thread,
            replica.tokenizer_thread,
            self._board,
            self._process,
            shares=plan.replicas > 1,
            begun=replica._begun,
        )
        self._rows = self._report.rows
        self._finished: list[int] = []
        self._new_parts: list[parts.Part] = []
        self._flushing: asyncio.Task[None] | None = None
        self._preparing: set[asyncio.Task[None]] = set()
        self._ask_below = 1
        self._ask_at = 0.0
        self._is_over = False
        self.leaves = False
        """Whether no rows are left for this replica, and others do those that may come back."""

    async def work(self) -> None:
        """Work until the queue is finished, or the job drains.

        :raises GoneError: the coordinator took this process for lost.
        :raises RaybatchError: input can't be read, or a part can't be written.
        """
        await self._board.join.remote(self._process, self._slots)
        try:
            while not (self._is_over and self._is_idle) and not self._draining:
                if self._flight.error is not None:
                    await self._fail(self._flight.error)
                self._raise_what_failed()
                if self._asks():
                    await self._ask()
                if self._is_due():
                    self._flushing = asyncio.ensure_future(self._flush())
                self._wake.clear()
                if not (self._flight.error or self._asks() or self._is_due()):
                    await self._wait()
            await self._end()
        finally:
            for task in self._preparing:
                task.cancel()
            await self._flight.cancel()
            self._replica._flight = None

    @property
    def _draining(self) -> bool:
        return self._replica._draining.is_set()

    @property
    def _is_idle(self) -> bool:
        """Whether all that it has is answered, written and reported."""
        return not (
            self._unanswered or self._flight.landed or self._flushing or self._finished or self._new_parts
        )

    @property
    def _unanswered(self) -> int:
        return self._preparer.pending + self._flight.unanswered

    def _asks(self) -> bool:
        if self._replica._asked_to_ask.is_set():
            return True
        if self._finished and not self._unanswered:
            return True  # nothing is left, and others may wait for this word
        wants = bool(self._finished) or self._unanswered < self._ask_below
        return wants and not self._is_over and time.monotonic() >= self._ask_at

    def _is_due(self) -> bool:
        if self._flushing is not None or not self._flight.landed:
            return False
        return not self._unanswered or self._flight.waits_for() >= self._limits.flush_interval

    async def _wait(self) -> None:
        seconds = min(_TICK, max(0.0, self._ask_at - time.monotonic()) or _TICK)
        if self._flight.landed:
            seconds = min(seconds, max(0.01, self._limits.flush_interval - self._flight.waits_for()))
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._wake.wait(), seconds)

    async def _ask(self) -> None:
        self._replica._asked_to_ask.clear()
        order: Order = await self._board.pull.remote(self._process, *self._word())
        grant = order.grant
        self.leaves = order.leaves
        self._is_over = order.is_finished or order.leaves
        self._ask_below = max(1, grant.ask_below)
        got = len(grant.rows) + len(grant.failed)
        self._ask_at = time.monotonic() + (_LEAST_PAUSE if got else _IDLE_PAUSE)
        if grant.alone or grant.flush:
            self._ask_at = time.monotonic() + (0.0 if got else _IDLE_PAUSE)
            self._ask_below = 1
        if grant.give_back:
            await self._give_back(grant.give_back)
        if got:
            work = asyncio.ensure_future(self._preparer.prepare(order, self._watch, _KILLER))
            self._preparing.add(work)
            work.add_done_callback(lambda _: self._wake.set())

    def _word(self) -> tuple[Report, Done | None]:
        """What it says when it asks."""
        finished, self._finished = np.array(self._finished, dtype=np.int64), []
        written, self._new_parts = self._new_parts, []
        seconds, self._watch.seconds = self._watch.seconds, {}
        self._report.cpu_seconds = round(time.process_time() - self._replica._cpu_before, 2)
        done = None
        if written:
            done = Done(written, seconds, dataclasses.replace(self._report))
        else:
            self._watch.seconds = seconds
        work = self._report.output_tokens + self._report.tokens_in_flight
        return Report(self._report.rows - self._rows, float(work), finished), done

    async def _give_back(self, count: int) -> None:
        rows = self._flight.take_back(count)
        if rows:
            ordinals = np.array([row.ordinal for row in rows], dtype=np.int64)
            await self._preparer.share_rows(ordinals)
            await self._board.give_back.remote(self._process, ordinals)

    async def _flush(self) -> None:
        """Write what has landed."""
        try:
            rows = self._flight.take()
            start = time.monotonic()
            await self._replica.tokenizer_thread(self._replica.decode, rows)
            self._watch.add("detokenize", start)
            start = time.monotonic()
            written = await self._replica.thread(self._replica.write, rows)
            self._watch.add("write", start)
            # Not before: another process repeats what is not written, and counts it then.
            self._report.killers += sum(row.result is _KILLER for row in rows)
            self._report.errors += sum(part.rows - part.ok for part in written)
            self._report.written += sum(part.rows for part in written)
            self._new_parts += written
            self._finished += [row.ordinal for row in rows]
        finally:
            self._wake.set()

    def _raise_what_failed(self) -> None:
        if self._flushing is not None and self._flushing.done():
            flushed, self._flushing = self._flushing, None
            flushed.result()
        for task in [task for task in self._preparing if task.done()]:
            self._preparing.discard(task)
            task.result()

    async def _write_the_rest(self) -> None:
        if self._flushing is not None:
            await self._flushing
            self._flushing = None
        if self._flight.landed:
            await self._flush()

    async def _end(self) -> None:
        """All is done, or the job drains: the rows in the engine are given up."""
        for task in self._preparing:
            task.cancel()
        await asyncio.gather(*self._preparing, return_exceptions=True)
        await self._flight.cancel()
        await self._write_the_rest()
        if self._finished or self._new_parts:
            await self._board.pull.remote(self._process, *self._word())
        self._replica.count()
        self._replica._reporter.send()
        await self._board.leave.remote(self._process)
        self._replica._begun.remove()

    async def _fail(self, error: BaseException) -> None:
        """End this process, if nothing brings its engine back, which holds its memory."""
        if not isinstance(error, EngineDeadError):
            raise error
        for task in self._preparing:
            task.cancel()
        await asyncio.gather(*self._preparing, return_exceptions=True)
        inside = [*self._flight.fallen, *self._flight.inside.values()]
        await self._write_the_rest()
        landed = {row.ordinal for row in self._flight.landed} | set(self._finished)
        suspects = [row.ordinal for row in inside if row.ordinal not in landed]
        rows = np.array(suspects, dtype=np.int64) if suspects else no_rows()
        with contextlib.suppress(Exception):  # without a coordinator there is no job
            await self._board.lost.remote(self._process, not error.killed, rows, *self._word())
        os._exit(_ENGINE_DIED)


def _actor() -> str:
    return str(ray.get_runtime_context().get_actor_id() or "local")


def _name() -> str:
    return str(ray.get_runtime_context().get_actor_name() or "")


def _node() -> str:
    return str(ray.get_runtime_context().get_node_id())
