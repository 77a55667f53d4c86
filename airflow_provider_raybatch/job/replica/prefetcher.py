# SPDX-License-Identifier: Apache-2.0
"""From the rows that a replica gets to what its engine takes: read or borrow, render, tokenise."""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

import numpy as np
import ray

from airflow_provider_raybatch.job.engine.base import EngineDeadError
from airflow_provider_raybatch.job.input.chunk_rows import ChunkRows
from airflow_provider_raybatch.job.input.reader import Content
from airflow_provider_raybatch.job.input.survey import Chunk
from airflow_provider_raybatch.job.replica.inflight import InflightRequests, Row
from airflow_provider_raybatch.job.replica.process import ReplicaProcess
from airflow_provider_raybatch.job.replica.shared_requests import Found, SharedRequests
from airflow_provider_raybatch.job.row import Request, RowFailure
from airflow_provider_raybatch.job.row_order import grouping, lengths
from airflow_provider_raybatch.job.row_order.buckets import Bucket, Gathered
from airflow_provider_raybatch.job.scheduling.messages import Assignment
from airflow_provider_raybatch.job.scheduling.row_index import Ordinals
from airflow_provider_raybatch.job.work import Stopwatch

_AT_ONCE = 4
"""Batches that are prepared at the same time: while one is tokenised, the next is read."""
_PATIENCE = 10.0
"""Seconds to wait for what another replica reads; after that it is read from storage."""
_LOOK_AGAIN = 0.05


class Contents:
    """What a replica has read: kept while its rows may be given back, and shared with others."""

    def __init__(self, replica: ReplicaProcess) -> None:
        self._replica = replica
        self._shares = replica.plan.replicas > 1
        self._read: dict[int, asyncio.Task[Content | Gathered]] = {}
        self._released: set[int] = set()
        self.chunks: dict[int, Chunk | Bucket] = {}

    async def begin(self, assignment: Assignment) -> None:
        """Rows of an assignment are about to be read."""
        self._released = (self._released - assignment.chunks.keys()).union(assignment.release)
        self.chunks.update(assignment.chunks)
        await self.share(piece for piece in assignment.put if piece in self._read)

    async def end(self, assignment: Assignment) -> None:
        """All rows of an assignment are read."""
        self._released.update(assignment.borrow)
        if assignment.borrow:
            await self._replica.coordinator.fetched.remote(self._replica.process, assignment.borrow)

    def drop(self, waiting: Iterable[Row]) -> None:
        """Forget what no other replica asks for, but for rows that wait and may be given back."""
        numbers = sorted(row.ordinal for row in waiting)
        for piece in list(self._released):
            chunk = self.chunks[piece]
            after = bisect_left(numbers, chunk.ordinal + chunk.rows)
            if bisect_left(numbers, chunk.ordinal) == after:
                self._read.pop(piece, None)
                self._released.discard(piece)

    async def of(self, piece: int, assignment: Assignment) -> Content | Gathered:
        """The content of a piece, which is read once: by this replica or by another one."""
        if piece not in self._read:
            self._read[piece] = asyncio.ensure_future(self._get(piece, assignment))
        return await asyncio.shield(self._read[piece])

    async def share(self, pieces: Iterable[int]) -> None:
        """Let others have pieces that were read before; what is not here any more, they read themselves."""
        known, unknown = {}, {}
        for piece in pieces:
            if isinstance(self.chunks[piece], Bucket):
                continue  # CPU tasks have shared it
            task = self._read.get(piece)
            if task is not None and task.done() and not task.cancelled() and task.exception() is None:
                known[piece] = task.result()
            else:
                unknown[piece] = list[Any]()
        await self._share(known, unknown)

    async def _get(self, piece: int, assignment: Assignment) -> Content | Gathered:
        chunk = self.chunks[piece]
        if isinstance(chunk, Bucket):
            return await self._replica.thread(_gathered, chunk)
        if piece in assignment.borrow and (content := await self._borrowed(piece)) is not None:
            return content
        content = await self._replica.thread(self._replica.reader.content, chunk)
        if piece in assignment.put:
            await self._share({piece: content}, {})
        return content

    async def _share(self, known: dict[int, Content], unknown: dict[int, list[Any]]) -> None:
        if self._shares and (known or unknown):
            references = await self._replica.thread(_put, known)
            await self._replica.coordinator.share.remote(self._replica.process, {**references, **unknown})

    async def _borrowed(self, piece: int) -> Content | None:
        waited = 0.0
        while self._shares and waited < _PATIENCE:
            references = await self._replica.coordinator.content.remote(piece)
            if references is not None:
                return await self._replica.thread(_got, references) if references else None
            await asyncio.sleep(_LOOK_AGAIN)
            waited += _LOOK_AGAIN
        return None


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


def _put(contents: dict[int, Content]) -> dict[int, list[Any]]:
    return {piece: [ray.put(content)] for piece, content in contents.items()}


def _got(references: list[Any]) -> Content | None:
    """``None`` if it is gone with the replica that had read it."""
    try:
        return ray.get(references[0], timeout=_PATIENCE)
    except ray.exceptions.RayError:
        return None


def _gathered(bucket: Bucket) -> Gathered:
    return Gathered(ray.get(list(bucket.slices)))
