# SPDX-License-Identifier: Apache-2.0
"""Send files of a folder as one body of known length, or a range of it, with little of it in memory."""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import AsyncIterator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from fastapi.responses import StreamingResponse

from airflow_provider_raybatch.contract.failures import FailureClass
from airflow_provider_raybatch.contract.text import count_of
from airflow_provider_raybatch.plugins.batch_api.errors import OpenAiError
from airflow_provider_raybatch.storage.errors import StorageError
from airflow_provider_raybatch.storage.folder import ReadableFolder

_PIECE = 1024 * 1024
_AHEAD = 2
"""Pieces that are read while the client takes the one before."""
_THREADS = ThreadPoolExecutor(16, thread_name_prefix="raybatch-downloads")
"""Own ones, so that slow storage takes none of the API server's."""
_RANGE = re.compile(r"bytes=([0-9]{0,18})-([0-9]{0,18})", re.IGNORECASE)


async def download(
    folder: ReadableFolder, files: Sequence[tuple[str, int]], asked: str = ""
) -> StreamingResponse:
    """The answer with the content of `files`; its first piece is read before, so that it can be refused.

    A file that can't be read later ends the connection, since the length that was announced is not reached.

    :param files: paths with their sizes in bytes, which are not looked up.
    :param asked: the header ``Range``; anything but one range of bytes asks for the whole.
    :raises OpenAiError: 416, the range is empty or begins behind the end.
    :raises StorageError: the first file is missing or can't be read.
    """
    size = sum(bytes_ for _, bytes_ in files)
    asked_part = _byte_range(asked, size)
    part = range(size) if asked_part is None else asked_part
    pieces = read_pieces(folder, files, part)
    first = await anext(pieces, b"")

    async def body() -> AsyncIterator[bytes]:
        yield first
        async for piece in pieces:
            yield piece

    headers = {"Accept-Ranges": "bytes", "Content-Length": str(len(part))}
    if asked_part is None:
        return StreamingResponse(body(), 200, headers, "application/octet-stream")
    headers["Content-Range"] = f"bytes {part.start}-{part.stop - 1}/{size}"
    return StreamingResponse(body(), 206, headers, "application/octet-stream")


def _byte_range(asked: str, size: int) -> range | None:
    """The bytes that a header ``Range`` asks for; ``None`` where it is not one range of bytes.

    :raises OpenAiError: 416, the range is empty or begins behind the end.
    """
    found = _RANGE.fullmatch(asked.strip())
    first, last = found.groups() if found is not None else ("", "")
    if first:
        part = range(int(first), min(int(last) + 1, size) if last else size)
    elif last:
        part = range(max(0, size - int(last)), size)
    else:
        return None
    if not part:
        text = f"Range: the file has {count_of(size, 'byte')}; ask for some of these."
        raise OpenAiError(416, text, param="Range", headers={"Content-Range": f"bytes */{size}"})
    return part


async def read_pieces(
    folder: ReadableFolder, files: Sequence[tuple[str, int]], part: range
) -> AsyncIterator[bytes]:
    """The bytes of `files`, in pieces of at most 1 MiB.

    :param part: positions in all of them.
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
        for path, start, length in _ranges(files, part):
            waiting.append(loop.run_in_executor(_THREADS, read, path, start, length))
            if len(waiting) > _AHEAD:
                yield await waiting.popleft()
        while waiting:
            yield await waiting.popleft()
    finally:
        for future in waiting:
            if not future.cancel() and not future.cancelled():
                future.exception()


def _ranges(files: Sequence[tuple[str, int]], part: range) -> Iterator[tuple[str, int, int]]:
    before = 0
    for path, size in files:
        end = min(size, part.stop - before)
        for start in range(max(0, part.start - before), end, _PIECE):
            yield path, start, min(_PIECE, end - start)
        before += size
