# SPDX-License-Identifier: Apache-2.0
"""Send files of a folder one after the other, as one body of known length and with little of it in memory."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from fastapi.responses import StreamingResponse

from airflow_provider_raybatch.contract.failures import FailureClass
from airflow_provider_raybatch.storage.errors import StorageError
from airflow_provider_raybatch.storage.folder import ReadableFolder

_PIECE = 1024 * 1024
_AHEAD = 2
"""Pieces that are read while the client takes the one before."""
_THREADS = ThreadPoolExecutor(16, thread_name_prefix="raybatch-downloads")
"""Own ones, so that slow storage takes none of the API server's."""


async def download(folder: ReadableFolder, files: Sequence[tuple[str, int]]) -> StreamingResponse:
    """The answer with the content of `files`; its first piece is read before, so that it can be refused.

    A file that can't be read later ends the connection, since the length that was announced is not reached.

    :param files: paths with their sizes in bytes, which are not looked up.
    :raises StorageError: the first file is missing or can't be read.
    """
    pieces = read_pieces(folder, files)
    first = await anext(pieces, b"")

    async def body() -> AsyncIterator[bytes]:
        yield first
        async for piece in pieces:
            yield piece

    length = sum(size for _, size in files)
    return StreamingResponse(
        body(), media_type="application/octet-stream", headers={"Content-Length": str(length)}
    )


async def read_pieces(folder: ReadableFolder, files: Sequence[tuple[str, int]]) -> AsyncIterator[bytes]:
    """The bytes of `files`, in pieces of at most 1 MiB.

    :raises StorageError: a file is missing, shorter than said, or can't be read.
    """
    loop, waiting = asyncio.get_running_loop(), deque[asyncio.Future[bytes]]()

    def read(path: str, start: int, length: int) -> bytes:
        piece = folder.read_range(path, start, length)
        if len(piece) != length:
            raise StorageError(
                f"{folder.uri}/{path}: it ends at byte {start + len(piece):,}; was it replaced?",
                FailureClass.USER_ERROR,
            )
        return piece

    try:
        for path, start, length in _ranges(files):
            waiting.append(loop.run_in_executor(_THREADS, read, path, start, length))
            if len(waiting) > _AHEAD:
                yield await waiting.popleft()
        while waiting:
            yield await waiting.popleft()
    finally:
        for future in waiting:
            if not future.cancel() and not future.cancelled():
                future.exception()


def _ranges(files: Sequence[tuple[str, int]]) -> Iterator[tuple[str, int, int]]:
    for path, size in files:
        for start in range(0, size, _PIECE):
            yield path, start, min(_PIECE, size - start)
