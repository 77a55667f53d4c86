# SPDX-License-Identifier: Apache-2.0
"""The work of a replica: its rows, from source to part.

It asks the coordinator for rows when it holds fewer than its engine can run, and some more. What is finished
is written together, one part each `flush_interval`, and one more where many answers are there and the engine
has all rows that are left.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import time
from collections.abc import Coroutine, Sequence
from typing import Any

import numpy as np

from airflow_provider_raybatch.contract.arguments.limits import LimitArguments
from airflow_provider_raybatch.job.engine.base import EngineDeadError
from airflow_provider_raybatch.job.parts import part as parts
from airflow_provider_raybatch.job.replica.inflight import InflightRequests, Row
from airflow_provider_raybatch.job.replica.prefetcher import Prefetcher
from airflow_provider_raybatch.job.replica.process import ReplicaProcess
from airflow_provider_raybatch.job.replica.row_images import RowImages
from airflow_provider_raybatch.job.replica.shared_requests import SharedRequests
from airflow_provider_raybatch.job.row import RowFailure
from airflow_provider_raybatch.job.scheduling.messages import MOST_WAITING, Assignment, Begun, PullRequest
from airflow_provider_raybatch.job.work import Done, Stopwatch

ENGINE_DIED = 70
"""Exit status of a replica whose engine died (EX_SOFTWARE): Ray restarts the actor and repeats its task."""
_LEAST_PAUSE = 0.2
"""Seconds between two calls of the coordinator at least."""
_IDLE_CALLS = 1000
"""A second, of all replicas, while the coordinator has no rows to give."""
_TICK = 1.0
_STEP_PAUSE = 0.5
_AWAITED = 4
"""Parts in a `flush_interval` where other replicas wait for an answer."""
_MOST_INTERVALS = 3
"""How many times `flush_interval` an answer may wait for its part. Where CPU or storage is slower, the engine
waits, so that a kill loses few answers."""
_MANY = 1024
"""Answers that take a tenth of a second to detokenise and to write."""
_KILLER = RowFailure("engine", "the engine's process dies of this row, and did so with this row alone in it")


def _killer(prompt_function: str | None) -> RowFailure:
    """The failure of a row that ends the process; a `prompt_function` may be what ends it."""
    if prompt_function is None:
        return _KILLER
    return RowFailure(
        "engine",
        f"the process of the engine and of prompt_function {prompt_function!r} dies of this row, and did so "
        "with this row alone in it",
    )


class ReplicaWorker:
    """What a replica does from when it joins the queue until it leaves it.

    :ivar leaves: whether no rows are left for this replica, and others do those that may come back.
    """

    def __init__(self, replica: ReplicaProcess) -> None:
        self._replica = replica
        self._coordinator = replica.coordinator
        self._process = replica.process
        self._report = replica.report
        self._limits: LimitArguments = replica.job.spec
        self._killer = _killer(replica.job.spec.prompt_function)
        self._wake = asyncio.Event()
        self._watch = Stopwatch()
        plan = replica.plan
        self._slots = plan.rows_in_engine
        self._idle_pause = max(_LEAST_PAUSE, plan.replicas / _IDLE_CALLS)
        self._inflight = replica.inflight = InflightRequests(
            replica.engine,
            self._report,
            self._slots,
            plan.grows,
            plan.replicas > 1,
            self._watch,
            self._wake.set,
            replica.begun,
            RowImages(replica, self._watch) if replica.job.spec.may_have_images else None,
            _MOST_INTERVALS * self._limits.flush_interval,
        )
        self._shared = SharedRequests(replica, self._inflight)
        self._prefetcher = Prefetcher(replica, self._inflight, self._shared, self._watch, self._killer)
        self._rows = self._report.rows
        self._finished: list[int] = []
        self._new_parts: list[parts.Part] = []
        self._new_answers: list[tuple[int, parts.Part]] = []
        self._new_keys: list[tuple[parts.Part, list[bytes]]] = []
        self._is_awaited = self._proves = False
        self._flushing: asyncio.Task[None] | None = None
        self._preparing: set[asyncio.Task[None]] = set()
        self._ask_below = 1
        self._ask_at = 0.0
        self._at_once = self._slots
        self._is_over = self._was_early = self._ends = False
        self.leaves = False

    async def work(self) -> None:
        """Work until the queue is finished, or the job drains.

        :raises StaleReplicaError: the coordinator took this process for lost.
        :raises RaybatchError: input can't be read, or a part can't be written.
        """
        await self._coordinator.join.remote(self._process, self._slots)
        try:
            while not (self._is_over and self._is_idle) and not self._draining:
                self._raise_what_failed()
                if self._asks():
                    await self._ask()
                if self._is_due():
                    self._was_early = not self._is_time
                    self._flushing = asyncio.ensure_future(self._flush())
                self._wake.clear()
                if not (self._inflight.error or self._asks() or self._is_due()):
                    await self._wait()
            await self._end()
        except EngineDeadError as error:
            await self._fail(error)
        finally:
            for task in self._preparing:
                task.cancel()
            await self._inflight.cancel()
            self._replica.inflight = None

    @property
    def _draining(self) -> bool:
        return self._replica.draining.is_set()

    @property
    def _is_idle(self) -> bool:
        """Whether all that it has is answered, written and reported."""
        unreported = self._finished or self._new_parts or self._new_answers
        open_rows = self._unanswered or self._shared.waiting
        return not (open_rows or self._inflight.landed or self._flushing or unreported)

    @property
    def _unanswered(self) -> int:
        """Rows that its engine answers; those that wait for another row's answer keep it from nothing."""
        return self._prefetcher.pending + self._inflight.unanswered

    def _asks(self) -> bool:
        if self._replica.asked_to_ask.is_set():
            return True
        if self._finished and not self._unanswered:
            return True  # nothing is left, and others may wait for this report
        # Others may get what it does not begin, or it may begin more than it has.
        has_news = bool(self._finished) or self._inflight.at_once != self._at_once
        held = self._unanswered + max(0, self._shared.waiting - MOST_WAITING * self._slots)
        wants = has_news or held < self._ask_below or (self._shared.waiting > 0 == self._unanswered)
        return wants and not self._is_over and time.monotonic() >= self._ask_at

    def _is_due(self) -> bool:
        can_flush = self._flushing is None and bool(self._inflight.landed)
        return can_flush and (self._is_time or self._is_early)

    @property
    def _is_time(self) -> bool:
        return not self._unanswered or self._inflight.waits_for() >= self._pause

    @property
    def _pause(self) -> float:
        """Seconds until what has landed is written."""
        is_wanted = self._inflight.goes_on or self._is_awaited or self._shared.waiting
        return self._step_pause if is_wanted else self._limits.flush_interval

    @property
    def _step_pause(self) -> float:
        """Seconds until rows are written that another step may ask: few, where they would fill an engine."""
        interval = self._limits.flush_interval
        if self._inflight.lacks_rows:
            return min(_STEP_PAUSE, interval)
        return interval / _AWAITED if self._is_awaited else interval

    @property
    def _is_early(self) -> bool:
        """Whether to write before it is time, once: the engine has all that is left, so less follows."""
        has_all = not (self._prefetcher.pending or self._inflight.waiting)
        return has_all and len(self._inflight.landed) >= _MANY and not self._was_early

    async def _wait(self) -> None:
        seconds = min(_TICK, max(0.0, self._ask_at - time.monotonic()) or _TICK)
        if self._inflight.landed:
            seconds = min(seconds, max(0.01, self._pause - self._inflight.waits_for()))
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._wake.wait(), seconds)

    async def _ask(self) -> None:
        self._replica.asked_to_ask.clear()
        report, done = self._progress()
        assignment: Assignment = await self._coordinator.pull.remote(self._process, report, done)
        self._shared.reported(done)
        self._is_awaited = assignment.is_awaited
        await self._release(*self._shared.take_over(assignment.taken_over))
        if assignment.shared:
            self._prepare(self._hear(assignment))
        self.leaves = assignment.leaves
        self._is_over = assignment.is_finished or assignment.leaves
        if assignment.answers:
            await self._replica.thread(self._replica.asker.learn, assignment.answers)
        is_test = assignment.isolated or assignment.flush
        self._ask_below = 1 if is_test else max(1, assignment.ask_below)
        self._inflight.has_share = assignment.has_share
        got = len(assignment.rows) + len(assignment.failed)
        pause = 0.0 if is_test else _LEAST_PAUSE
        self._ask_at = time.monotonic() + (pause if got else self._idle_pause)
        if assignment.give_back:
            await self._give_back(assignment.give_back)
        if got:
            self._prepare(self._prefetcher.prepare(assignment))

    def _prepare(self, rows: Coroutine[Any, Any, None]) -> None:
        """Let rows be prepared for the engine beside all else."""
        work = asyncio.ensure_future(rows)
        self._preparing.add(work)
        work.add_done_callback(lambda _: self._wake.set())

    def _go_on(self, rows: Sequence[Row], is_own: bool = False) -> None:
        """Let rows be asked that were prepared before; see :meth:`Prefetcher.go_on`."""
        if rows and not self._ends:
            self._prefetcher.pending += len(rows)
            self._prepare(self._prefetcher.go_on(rows, is_own))

    def _progress(self) -> tuple[PullRequest, Done | None]:
        """What it reports when it asks."""
        finished, self._finished = np.array(self._finished, dtype=np.int64), []
        self._report.cpu_seconds = round(time.process_time() - self._replica.cpu_before, 2)
        done = None
        if self._new_parts or self._new_answers:
            report = dataclasses.replace(self._report)
            done = Done(self._new_parts, self._watch.seconds, report, self._new_answers, self._new_keys)
            self._new_parts, self._new_answers, self._new_keys, self._watch.seconds = [], [], [], {}
        work = self._report.output_tokens + self._report.tokens_in_flight
        answered, self._at_once = self._report.rows - self._rows, self._inflight.at_once
        # What is in the engine can't be given back, also where it lets no more in by now.
        at_once = max(self._at_once, len(self._inflight.inside))
        proves, self._proves = self._proves, False
        return PullRequest(answered, float(work), finished, at_once, self._shared.waiting, proves), done

    async def _hear(self, assignment: Assignment) -> None:
        self._go_on(await self._shared.heard(assignment.shared), is_own=True)

    async def _release(self, keys: Sequence[bytes], asked: Sequence[Row]) -> None:
        """Ask rows for those that were to be asked, and let others ask what none waits for here."""
        self._go_on(asked, is_own=True)
        if keys:
            await self._coordinator.unclaim.remote(self._process, keys)

    async def _give_back(self, count: int) -> None:
        rows = self._inflight.take_back(count)
        if rows:
            await self._release(*self._shared.given_back(rows))
            ordinals = np.array([row.ordinal for row in rows], dtype=np.int64)
            await self._prefetcher.contents.share(
                await self._coordinator.give_back.remote(self._process, ordinals)
            )

    async def _flush(self) -> None:
        try:
            rows = self._inflight.take()
            start = time.monotonic()
            await self._replica.tokenizer_thread(self._replica.asker.decode, rows)
            self._watch.add("detokenize", start)
            start = time.monotonic()
            followers = self._shared.followers(rows)
            await self._release(*self._shared.given_back(self._shared.changed(rows)))
            written = await self._replica.thread(self._replica.asker.write, rows, followers)
            self._watch.add("write", start)
            if not self._ends:
                self._inflight.written()
            # Not before: another process repeats what is not written, and counts it.
            self._report.rows += written.uncounted
            self._report.killers += sum(row.result is self._killer for row in rows)
            self._report.special += len([row for row in rows if row.result.has_special_tokens])
            self._report.truncated += len([row for row in rows if row.result.truncated_prompt_tokens])
            self._report.errors += sum(part.rows - part.ok for part in written.parts)
            self._report.written += sum(part.rows for part in written.parts)
            for step, part in written.answers:
                self._report.answer(step, part.rows)
            self._new_parts += written.parts
            self._new_answers += written.answers
            self._new_keys += written.keys
            both = (*written.parts, *(part for _, part in written.answers))
            self._proves |= any(part.may_be_generated for part in both)
            self._finished += [row.ordinal for row in written.finished]
            self._go_on(written.next)
            self._go_on(await self._shared.written(written.keys), is_own=True)
        finally:
            self._wake.set()

    def _raise_what_failed(self) -> None:
        if self._inflight.error is not None:
            raise self._inflight.error
        if self._flushing is not None and self._flushing.done():
            flushed, self._flushing = self._flushing, None
            flushed.result()
        for task in [task for task in self._preparing if task.done()]:
            task.result()
            self._preparing.discard(task)

    async def _write_the_rest(self) -> None:
        if self._flushing is not None:
            await self._flushing
            self._flushing = None
        if self._inflight.landed:
            await self._flush()

    async def _end(self) -> None:
        """All is done, or the job drains: the rows in the engine are given up."""
        self._ends = True
        for task in self._preparing:
            task.cancel()
        await asyncio.gather(*self._preparing, return_exceptions=True)
        await self._inflight.cancel()
        await self._write_the_rest()
        if self._finished or self._new_parts or self._new_answers:
            await self._coordinator.pull.remote(self._process, *self._progress())
        self._replica.count()
        self._replica.reporter.send()
        await self._replica.give_back_engine()
        await self._coordinator.leave.remote(self._process)
        self._replica.begun.remove()

    async def _fail(self, error: EngineDeadError) -> None:
        """End this process, since nothing brings its engine back, which holds its memory."""
        self._ends = True
        for task in self._preparing:
            task.cancel()
        await asyncio.gather(*self._preparing, return_exceptions=True)
        begun = self._replica.begun.now()
        if not await self._prefetcher.tokenization.died():
            begun = Begun(begun.in_engine)  # it did not die of what it tokenised
        with contextlib.suppress(EngineDeadError):  # its front end, which has the answers, may be gone, too
            await self._write_the_rest()
        with contextlib.suppress(Exception):  # if the coordinator is gone, the job has ended
            await self._coordinator.lost.remote(self._process, not error.killed, begun, *self._progress())
        os._exit(ENGINE_DIED)
