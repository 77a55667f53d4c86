# SPDX-License-Identifier: Apache-2.0
"""From what the queue grants to rows that the engine takes: read or borrow, render, tokenise."""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import ray

from airflow_provider_raybatch.job.engine.base import Engine
from airflow_provider_raybatch.job.input.chunk_rows import ChunkRows
from airflow_provider_raybatch.job.input.reader import Content, Reader
from airflow_provider_raybatch.job.input.survey import Chunk
from airflow_provider_raybatch.job.replica.coordinator import Order
from airflow_provider_raybatch.job.replica.crash_log import CrashLog
from airflow_provider_raybatch.job.replica.inflight import InflightRequests, Row
from airflow_provider_raybatch.job.replica.request_builder import PreparedRow, RequestBuilder
from airflow_provider_raybatch.job.row import Request, RowFailure
from airflow_provider_raybatch.job.row_order import lengths, prefixes
from airflow_provider_raybatch.job.row_order.buckets import Bucket, Gathered
from airflow_provider_raybatch.job.work import Stopwatch

_AT_ONCE = 4
"""Batches that are prepared at the same time: while one is tokenised, the next is read."""
_PATIENCE = 10.0
"""Seconds to wait for what another replica reads; after that it is read from storage."""
_LOOK_AGAIN = 0.05

Thread = Callable[..., Awaitable[Any]]


class _Later:
    """Rows that wait until all of their order are rendered, so that they can begin in another order.

    Only where the first batch has long prompts, which may begin alike, or rows that are known to take longer
    than others: all others begin at once.
    """

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.is_used: asyncio.Future[bool] = asyncio.get_running_loop().create_future()


class Prefetcher:
    """Prepares rows in batches. Where it is known that some take longer, those are tokenised first.

    :param batch: rows that are rendered and tokenised together.
    :param thread: runs a function beside the event loop; `tokenizer_thread` one of the engine's tokenizer.
    :param coordinator: handle of the coordinator.
    :param shares: whether others may need what this replica reads.
    :param begun: told which rows are being prepared.
    """

    def __init__(
        self,
        reader: Reader,
        asker: RequestBuilder,
        engine: Engine,
        inflight: InflightRequests,
        batch: int,
        thread: Thread,
        tokenizer_thread: Thread,
        coordinator: Any,
        process: str,
        shares: bool,
        begun: CrashLog,
    ) -> None:
        self._reader = reader
        self._asker = asker
        self._engine = engine
        self._inflight = inflight
        self._batch = batch
        self._thread = thread
        self._tokenizer_thread = tokenizer_thread
        self._coordinator = coordinator
        self._process = process
        self._shares = shares
        self._begun = begun
        self._slots = asyncio.Semaphore(_AT_ONCE)
        self._contents: dict[int, asyncio.Task[Content | Gathered]] = {}
        self._chunks: dict[int, Chunk | Bucket] = {}
        self._released: set[int] = set()
        self.pending = 0
        """Rows that are not prepared yet."""

    async def prepare(self, order: Order, watch: Stopwatch, failure: RowFailure) -> None:
        """Let an order's rows go into the engine; those that are known to kill it fail with `failure`."""
        grant = order.grant
        batches = [(grant.failed, True)] if len(grant.failed) else []
        batches += [
            (grant.rows[first : first + self._batch], False)
            for first in range(0, len(grant.rows), self._batch)
        ]
        self._released = (self._released - order.chunks.keys()).union(grant.release)
        self._chunks.update(order.chunks)
        self.pending += len(grant.rows) + len(grant.failed)
        piece_of = _pieces_by_row(order.chunks)
        await self.share(piece for piece in grant.put if piece in self._contents)
        waiting = []
        later = _Later()
        for batch, is_failed in batches:
            await self._slots.acquire()
            reason = failure if is_failed else None
            work = self._one(order, batch, piece_of(batch), watch, reason, later)
            waiting.append(asyncio.ensure_future(work))
        try:
            await asyncio.gather(*waiting)
            rows = await self._thread(self._in_order, later.rows)
            for first in range(0, len(rows), self._batch):
                await self._slots.acquire()
                work = self._enter(rows[first : first + self._batch], watch)
                waiting.append(asyncio.ensure_future(work))
            await asyncio.gather(*waiting)
        finally:
            for task in waiting:
                task.cancel()
        self._released.update(grant.borrow)
        if grant.borrow:
            await self._coordinator.fetched.remote(self._process, grant.borrow)
        if not self.pending:
            self._forget()

    def _forget(self) -> None:
        """Drop what no other replica asks for, unless rows of it may be given back."""
        waiting = sorted(row.ordinal for row in self._inflight.waiting)
        for piece in list(self._released):
            chunk = self._chunks[piece]
            after = bisect_left(waiting, chunk.ordinal + chunk.rows)
            if bisect_left(waiting, chunk.ordinal) == after:
                self._contents.pop(piece, None)
                self._released.discard(piece)

    async def _one(
        self,
        order: Order,
        batch: Any,
        chunks: Any,
        watch: Stopwatch,
        failure: RowFailure | None,
        later: _Later,
    ) -> None:
        """Read and render a batch, and let it go into the engine, or wait for the other batches."""
        try:
            self._begun.prepare(batch.tolist())
            start = time.monotonic()
            pieces = list(dict.fromkeys(chunks.tolist()))
            contents = await asyncio.gather(*(self._content(piece, order) for piece in pieces))
            rows = await self._thread(
                self._rows_of, order, batch, chunks, dict(zip(pieces, contents, strict=True))
            )
            watch.add("read", start)
            start = time.monotonic()
            numbers = {
                place: order.repetitions[row]
                for place, row in enumerate(batch.tolist())
                if row in order.repetitions
            }
            found_rows = [found.rows[place] for found, place, _ in rows]
            if failure is None:
                asked = await self._thread(self._asker.ask, found_rows, numbers)
            else:
                asked = await self._thread(self._asker.ask_of_killers, found_rows, numbers, failure)
            watch.add("render", start)
            made = [
                Row(ordinal, position, one, found, place, label=_label(one))
                for ordinal, one, (found, place, position) in zip(batch.tolist(), asked, rows, strict=True)
            ]
            self._begun.end(batch.tolist())
        except BaseException:
            self._slots.release()
            raise
        if failure is not None:
            for row in made:
                self._inflight.land(row, failure)
            self.pending -= len(made)
            self._slots.release()
            return
        if batch[0] == order.grant.rows[0]:
            later.is_used.set_result(self._inflight.tells_apart(made) or prefixes.are_long(_texts(made)))
        if await later.is_used:
            later.rows += made
            self._slots.release()
        else:
            await self._enter(made, watch)

    def _in_order(self, rows: list[Row]) -> list[Row]:
        """Rows that begin alike after each other, else those with the longest answers first."""
        texts = _texts(rows)
        if not prefixes.are_shared(texts):
            return self._inflight.ordered(rows)
        for row in rows:
            row.label = lengths.UNKNOWN  # so that lengths don't take them apart again
        return [rows[place] for place in sorted(range(len(rows)), key=texts.__getitem__)]

    async def _enter(self, made: Sequence[Row], watch: Stopwatch) -> None:
        ordinals = [row.ordinal for row in made]
        try:
            self._begun.prepare(ordinals)
            await self._encode(made, watch)
            self._begun.end(ordinals)
        finally:
            self.pending -= len(made)
            self._slots.release()
        self._inflight.add(row for row in made if row.result is None)

    async def _encode(self, made: Sequence[Row], watch: Stopwatch) -> None:
        fit = []
        for row in made:
            request = row.asked.request
            if isinstance(request, Request):
                fit.append((row, request))
            else:
                self._inflight.land(row, request)
        start = time.monotonic()
        encoded = await self._tokenizer_thread(self._engine.encode, [request for _, request in fit])
        watch.add("tokenize", start)
        for (row, _), one in zip(fit, encoded, strict=True):
            if isinstance(one, RowFailure):
                self._inflight.land(row, one)
            else:
                row.encoded = one

    def _rows_of(
        self, order: Order, batch: Any, chunks: Any, contents: dict[int, Any]
    ) -> list[tuple[ChunkRows, int, int]]:
        """Each row of a batch, as what was read with it, its place there, and its ordinal in the input."""
        found: list[Any] = [None] * len(batch)
        for piece, content in contents.items():
            chunk = order.chunks[piece]
            places = np.flatnonzero(chunks == piece)
            inside = batch[places] - chunk.ordinal
            if isinstance(chunk, Bucket):
                rows = content.rows(self._reader, chunk.ordinals[inside].astype(np.int64))
            else:
                read = self._reader.rows(chunk, content, inside.tolist())
                rows = [(read, number, row) for number, row in enumerate(batch[places].tolist())]
            for place, row in zip(places.tolist(), rows, strict=True):
                found[place] = row
        return found

    async def _content(self, piece: int, order: Order) -> Content | Gathered:
        """What is read of a piece at once: by this replica, or by another one."""
        if piece not in self._contents:
            self._contents[piece] = asyncio.ensure_future(self._get(piece, order))
        return await asyncio.shield(self._contents[piece])

    async def _get(self, piece: int, order: Order) -> Content | Gathered:
        chunk = order.chunks[piece]
        if isinstance(chunk, Bucket):
            return await self._thread(_gathered, chunk)
        if piece in order.grant.borrow and (content := await self._borrowed(piece)) is not None:
            return content
        content = await self._thread(self._reader.content, chunk)
        if piece in order.grant.put:
            await self._share({piece: content}, {})
        return content

    async def share(self, pieces: Iterable[int]) -> None:
        """Let others have pieces that were read before; what is not here any more, they read themselves."""
        known, unknown = {}, {}
        for piece in pieces:
            if isinstance(self._chunks[piece], Bucket):
                continue  # CPU tasks have shared it
            task = self._contents.get(piece)
            if task is not None and task.done() and not task.cancelled() and task.exception() is None:
                known[piece] = task.result()
            else:
                unknown[piece] = list[Any]()
        await self._share(known, unknown)

    async def _share(self, known: dict[int, Content], unknown: dict[int, list[Any]]) -> None:
        if self._shares and (known or unknown):
            references = await self._thread(_put, known)
            await self._coordinator.share.remote(self._process, {**references, **unknown})

    async def _borrowed(self, piece: int) -> Content | None:
        waited = 0.0
        while self._shares and waited < _PATIENCE:
            references = await self._coordinator.content.remote(piece)
            if references is not None:
                return await self._thread(_got, references) if references else None
            await asyncio.sleep(_LOOK_AGAIN)
            waited += _LOOK_AGAIN
        return None


def _pieces_by_row(chunks: Mapping[int, Chunk | Bucket]) -> Callable[[Any], Any]:
    """Finds the number of the chunk in which each of some rows lies, by their ordinals."""
    numbers = np.array(sorted(chunks, key=lambda piece: chunks[piece].ordinal), dtype=np.int64)
    starts = np.array([chunks[piece].ordinal for piece in numbers.tolist()], dtype=np.int64)
    return lambda rows: numbers[np.searchsorted(starts, rows, side="right") - 1]


def _texts(rows: Sequence[Row]) -> list[str]:
    requests = [row.asked.request for row in rows]
    return [prefixes.text_of(one) if isinstance(one, Request) else "" for one in requests]


def _label(asked: PreparedRow) -> int:
    return lengths.label(asked.request) if isinstance(asked.request, Request) else lengths.UNKNOWN


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
