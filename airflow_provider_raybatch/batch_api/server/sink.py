# SPDX-License-Identifier: Apache-2.0
"""Pass an upload from the event loop to storage, which may be slow, with two pieces of it in memory."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import threading
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Self

from airflow_provider_raybatch.storage.stream import WriteStream

_PIECE = 1024 * 1024
_THREADS = ThreadPoolExecutor(16, thread_name_prefix="raybatch-uploads")
"""Own ones, so that slow storage takes none of the API server's. An upload has one only while it writes."""
Sink = AbstractContextManager[WriteStream]
"""What stores a file: it appears when the block ends without an exception. All is called in threads."""


class _AbandonedError(Exception):
    """The upload has ended before the file was whole."""


class SinkFeeder:
    """Writes pieces in order, one at a time, while the next one is collected.

    A block that ends with an exception leaves nothing in storage.

    :param sink: is entered before the first write.
    :ivar size: bytes so far. `lines` and `digest` hold once the block has ended.
    """

    def __init__(self, sink: Sink, threads: Executor = _THREADS) -> None:
        self.size = 0
        self._sink = sink
        self._threads = threads
        self._collected = bytearray()
        self._writing: asyncio.Future[None] | None = None
        # All below is the threads'.
        self._lock = threading.Lock()
        self._writer: WriteStream | None = None
        self._over = False
        self._sha256 = hashlib.sha256()
        self._newlines = 0
        self._last = b"\n"

    @property
    def lines(self) -> int:
        """Lines of the file; the last one needs no line break."""
        return self._newlines + (self._last != b"\n")

    @property
    def digest(self) -> str:
        """SHA-256 of the file, in hexadecimal."""
        return self._sha256.hexdigest()

    async def put(self, content: bytes) -> None:
        """Append to the file; waits until storage has taken what came before.

        :raises Exception: what the sink raised, in this call or an earlier one.
        """
        self.size += len(content)
        self._collected += content
        if len(self._collected) >= _PIECE:
            await self._write()

    async def _write(self) -> None:
        await self._written()
        piece = bytes(self._collected)
        self._collected.clear()
        self._writing = self._in_thread(lambda: self._append(piece))

    async def _written(self) -> None:
        if self._writing is not None:
            await asyncio.shield(self._writing)

    def _in_thread(self, call: Callable[[], None]) -> asyncio.Future[None]:
        future = asyncio.get_running_loop().run_in_executor(self._threads, call)
        # It may fail after the upload was given up; then the failure is of no interest.
        future.add_done_callback(lambda done: None if done.cancelled() else done.exception())
        return future

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if error is None:
                await self._write()
                await self._written()
        except BaseException:
            await self._end(abandoned=True)
            raise
        await self._end(abandoned=error is not None)

    async def _end(self, abandoned: bool) -> None:
        # Shielded: a cancelled request ends at once, and its file is removed all the same.
        await asyncio.shield(self._in_thread(lambda: self._close(abandoned)))

    def _append(self, piece: bytes) -> None:
        with self._lock:
            if self._over:  # a later call may get the lock first
                return
            if self._writer is None:
                self._writer = self._sink.__enter__()
            self._sha256.update(piece)
            self._newlines += piece.count(b"\n")
            self._last = piece[-1:] or self._last
            self._writer.write(piece)

    def _close(self, abandoned: bool) -> None:
        with self._lock:
            self._over = True
            if self._writer is None:
                return
            if not abandoned:
                self._sink.__exit__(None, None, None)
                return
            with contextlib.suppress(_AbandonedError):
                error = _AbandonedError()
                self._sink.__exit__(_AbandonedError, error, None)
