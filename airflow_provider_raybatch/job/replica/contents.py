# SPDX-License-Identifier: Apache-2.0
"""What a replica has read: each piece of the input is read once, by one replica, and borrowed by others."""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Iterable
from typing import Any

import ray

from airflow_provider_raybatch.job.input.reader import Content
from airflow_provider_raybatch.job.input.survey import Chunk
from airflow_provider_raybatch.job.replica.inflight import Row
from airflow_provider_raybatch.job.replica.process import ReplicaProcess
from airflow_provider_raybatch.job.row_order.buckets import Bucket, Gathered
from airflow_provider_raybatch.job.scheduling.messages import Assignment

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
