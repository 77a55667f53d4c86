# SPDX-License-Identifier: Apache-2.0
"""Pieces go to storage in order, one at a time, and the event loop goes on meanwhile."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Self

import pytest

from airflow_provider_raybatch.batch_api.server.sink import SinkFeeder

MIB = 2**20


class Slow:
    """A sink that waits until it may write; `ended` is how it ended."""

    def __init__(self) -> None:
        self.may = threading.Event()
        self.written: list[bytes] = []
        self.ended: str | None = None
        self.fails: Exception | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.ended = "complete" if kind is None else "aborted"

    def write(self, piece: bytes) -> None:
        assert self.ended is None
        assert self.may.wait(20)
        if self.fails:
            raise self.fails
        self.written.append(piece)


async def test_slow_storage_makes_the_caller_wait() -> None:
    """One piece is being written and one is collected; a third has to wait."""
    sink = Slow()
    async with SinkFeeder(sink) as feeder:
        await asyncio.wait_for(feeder.put(b"x" * MIB), 5)
        more = asyncio.ensure_future(feeder.put(b"y" * MIB))
        done, _ = await asyncio.wait([more], timeout=0.2)
        assert not done
        sink.may.set()
        await more
    assert sink.written == [b"x" * MIB, b"y" * MIB, b""]
    assert sink.ended == "complete"


async def test_a_failed_write_aborts() -> None:
    sink = Slow()
    sink.may.set()
    sink.fails = OSError("full")
    with pytest.raises(OSError, match="full"):
        async with SinkFeeder(sink) as feeder:
            await feeder.put(b"x" * MIB)
    assert sink.ended == "aborted"


async def test_a_write_after_the_end_does_nothing() -> None:
    """A cancelled upload whose next write still waits for a thread."""
    sink = Slow()
    with ThreadPoolExecutor(2) as threads:
        feeder = SinkFeeder(sink, threads)
        with pytest.raises(KeyError):  # noqa: PT012
            async with feeder:
                await feeder.put(b"x" * MIB)
                sink.may.set()
                raise KeyError
        feeder._append(b"late")
    assert sink.ended == "aborted"
    assert b"late" not in sink.written
