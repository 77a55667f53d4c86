# SPDX-License-Identifier: Apache-2.0
"""From the rows that a replica gets to what its engine takes: read or borrow, render, tokenise."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import numpy as np

from airflow_provider_raybatch.job.engine.base import EngineDeadError
from airflow_provider_raybatch.job.input.chunk_rows import ChunkRows
from airflow_provider_raybatch.job.replica.contents import Contents
from airflow_provider_raybatch.job.replica.inflight import InflightRequests, Row
from airflow_provider_raybatch.job.replica.process import ReplicaProcess
from airflow_provider_raybatch.job.replica.shared_requests import Found, SharedRequests
from airflow_provider_raybatch.job.row import Request, RowFailure
from airflow_provider_raybatch.job.row_order import grouping, lengths
from airflow_provider_raybatch.job.row_order.buckets import Bucket
from airflow_provider_raybatch.job.scheduling.messages import Assignment
from airflow_provider_raybatch.job.scheduling.row_index import Ordinals
from airflow_provider_raybatch.job.work import Stopwatch

_AT_ONCE = 4
"""Batches that are prepared at the same time: while one is tokenised, the next is read."""


class Tokenization:
    """Tokenises requests in the engine's own threads, and notices if the engine dies meanwhile."""

    def __init__(self, replica: ReplicaProcess, watch: Stopwatch) -> None:
        self._replica, self._watch = replica, watch
        self._running: set[asyncio.Future[list[Any]]] = set()
        self._died = False

    async def of(self, rows: Sequence[Row]) -> list[Any]:
        """What the engine takes for each row, or how the row fails."""
        start = time.monotonic()
        encode, requests = self._replica.engine.encode, self._replica.asker.requests(rows)
        work = asyncio.ensure_future(self._replica.tokenizer_thread(encode, requests))
        self._running.add(work)
        work.add_done_callback(self._ended)
        encoded = await asyncio.shield(work)
        self._watch.add("tokenize", start)
        return encoded

    def _ended(self, work: asyncio.Future[list[Any]]) -> None:
        self._running.discard(work)
        self._died |= not work.cancelled() and isinstance(work.exception(), EngineDeadError)

    async def died(self) -> bool:
        """Whether the engine is known to be dead by what was being tokenised.

        A row in the engine may be the first to tell of a death, and preparing is cancelled then; so this
        waits for what is being tokenised.
        """
        if self._running:
            await asyncio.wait(self._running)
        return self._died


class Prefetcher:
    """Prepares rows in batches. Where it is known that some take longer, those are tokenised first.

    :param inflight: gets the rows.
    :param shared: knows which of them ask what another one asks.
    :param killer: how rows fail that are known to kill the engine.
    """

    def __init__(
        self,
        replica: ReplicaProcess,
        inflight: InflightRequests,
        shared: SharedRequests,
        watch: Stopwatch,
        killer: RowFailure,
    ) -> None:
        self._replica = replica
        self._inflight = inflight
        self._shared = shared
        self._watch = watch
        self._killer = killer
        self._slots = asyncio.Semaphore(_AT_ONCE)
        self.tokenization = Tokenization(replica, watch)
        self.contents = Contents(replica)
        self.pending = 0
        """Rows that are not prepared yet."""

    @property
    def _swaps_adapters(self) -> bool:
        return self._replica.job.swaps_adapters

    async def prepare(self, assignment: Assignment) -> None:
        """Let an assignment's rows go into the engine; those that are known to kill it fail.

        Batches begin as soon as they are ready. Only where the first one has long prompts, which may begin
        alike, or rows that are known to take longer than others, all are rendered and then sorted.
        """
        self.pending += len(assignment.rows) + len(assignment.failed)
        await self.contents.begin(assignment)
        later: list[Row] = []
        sorts: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        tasks = [self._task(self._fail, assignment)] if len(assignment.failed) else []
        tasks += [
            self._task(self._build, assignment, batch, sorts, later)
            for batch in self._batches(assignment.rows)
        ]
        try:
            await asyncio.gather(*tasks)
            rows = await self._replica.thread(self._in_order, later)
            tasks += [self._task(self._enter, batch) for batch in self._batches(rows)]
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
        await self.contents.end(assignment)
        if not self.pending:
            self.contents.drop(self._inflight.waiting)

    def _task(self, work: Callable[..., Awaitable[None]], *arguments: Any) -> asyncio.Task[None]:
        async def in_turn() -> None:
            async with self._slots:
                await work(*arguments)

        return asyncio.ensure_future(in_turn())

    def _batches(self, rows: Any) -> list[Any]:
        size = self._replica.plan.rows_per_chunk
        return [rows[first : first + size] for first in range(0, len(rows), size)]

    async def _fail(self, assignment: Assignment) -> None:
        for row in await self._prepared(assignment, assignment.failed, self._killer):
            self._inflight.land(row, self._killer if row.result is None else row.result)
        self.pending -= len(assignment.failed)

    async def _build(
        self, assignment: Assignment, batch: Ordinals, sorts: asyncio.Future[bool], later: list[Row]
    ) -> None:
        rows = await self._prepared(assignment, batch, None)
        if batch[0] == assignment.rows[0]:
            has_order = self._swaps_adapters or self._inflight.tells_apart(rows)
            sorts.set_result(has_order or grouping.are_long(_texts(rows)))
        if await sorts:
            later += rows
        else:
            await self._enter(rows)

    async def _prepared(
        self, assignment: Assignment, batch: Ordinals, killer: RowFailure | None
    ) -> list[Row]:
        """Read and render a batch."""
        numbers = batch.tolist()
        self._replica.begun.prepare(numbers)
        start = time.monotonic()
        pieces = _pieces_of(assignment, batch)
        names = list(dict.fromkeys(pieces.tolist()))
        contents = await asyncio.gather(*(self.contents.of(piece, assignment) for piece in names))
        read = await self._replica.thread(
            self._read, assignment, batch, pieces, dict(zip(names, contents, strict=True))
        )
        self._watch.add("read", start)
        start = time.monotonic()
        repetitions = {
            place: assignment.repetitions[number]
            for place, number in enumerate(numbers)
            if number in assignment.repetitions
        }
        prepare = self._replica.asker.prepare
        rows = await self._replica.thread(prepare, numbers, read, repetitions, killer)
        self._watch.add("render", start)
        self._replica.begun.end(numbers)
        return rows

    def _read(
        self, assignment: Assignment, batch: Ordinals, pieces: Ordinals, contents: dict[int, Any]
    ) -> list[tuple[ChunkRows, int, int]]:
        """Each row of a batch, as what was read with it, its place there, and its ordinal in the input."""
        reader, read = self._replica.reader, list[Any]([None] * len(batch))
        for piece, content in contents.items():
            chunk = assignment.chunks[piece]
            places = np.flatnonzero(pieces == piece)
            inside = batch[places] - chunk.ordinal
            if isinstance(chunk, Bucket):
                rows = content.rows(reader, chunk.ordinals[inside].astype(np.int64))
            else:
                chunk_rows = reader.rows(chunk, content, inside.tolist())
                rows = [(chunk_rows, number, row) for number, row in enumerate(batch[places].tolist())]
            for place, row in zip(places.tolist(), rows, strict=True):
                read[place] = row
        return read

    def _in_order(self, rows: list[Row]) -> list[Row]:
        """Rows that begin alike, and of one adapter, after each other; else the longest answers first."""
        texts = _texts(rows)
        if not (self._swaps_adapters or grouping.are_shared(texts)):
            return self._inflight.ordered(rows)
        for row in rows:
            row.label = lengths.UNKNOWN  # so that lengths don't separate them again
        return [rows[place] for place in sorted(range(len(rows)), key=texts.__getitem__)]

    async def go_on(self, rows: Sequence[Row], is_own: bool = False) -> None:
        """Let rows go into the engine that their last step asks next, as rows of `pending`.

        :param is_own: whether no other row is asked for these.
        """
        for batch in self._batches(rows):
            async with self._slots:
                await self._enter(batch, is_own)

    async def _enter(self, rows: Sequence[Row], is_own: bool = False) -> None:
        """Tokenise rows, and let them go into the engine. Some wait for another row's answer instead."""
        ordinals = [row.ordinal for row in rows]
        self._replica.begun.prepare(ordinals)
        try:
            asked, found = self._fit(rows), list[Found]()
            if self._replica.asker.shares and not is_own:
                asked, found = await self._shared.to_ask(asked)
            # At once: another row's answer may have brought them into the engine again, for their next step.
            self._replica.begun.end({*ordinals} - {row.ordinal for row in asked})
            encoded = self._taken(asked, await self.tokenization.of(asked))
        finally:
            self.pending -= len(rows)
        self._replica.begun.end(row.ordinal for row in asked)
        self._inflight.add(encoded)
        if found and (left := await self._shared.land(found)):  # when the engine has the others
            self.pending += len(left)
            await self._enter(left, is_own=True)

    def _taken(self, rows: Sequence[Row], encoded: Sequence[Any]) -> list[Row]:
        """The rows that the engine takes; the others have failed."""
        taken = []
        for row, one in zip(rows, encoded, strict=True):
            if isinstance(one, RowFailure):
                self._inflight.land(row, one)
            else:
                row.encoded = one
                taken.append(row)
        return taken

    def _fit(self, rows: Sequence[Row]) -> list[Row]:
        """The rows that make a request; the others have their result."""
        fit = []
        for row in rows:
            request = row.prepared.request
            if row.result is not None:
                self._inflight.land(row, row.result)
            elif isinstance(request, Request):
                fit.append(row)
            else:
                self._inflight.land(row, request)
        return fit


def _pieces_of(assignment: Assignment, rows: Ordinals) -> Ordinals:
    """The piece in which each of some rows lies."""
    chunks = sorted((chunk.ordinal, piece) for piece, chunk in assignment.chunks.items())
    starts, pieces = np.array(chunks, dtype=np.int64).T
    return pieces[np.searchsorted(starts, rows, side="right") - 1]


def _texts(rows: Sequence[Row]) -> list[str]:
    return [grouping.text_of(row.prepared.request) for row in rows]
