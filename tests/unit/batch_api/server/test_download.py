# SPDX-License-Identifier: Apache-2.0
"""Files are sent one after the other; what is missing never looks like the end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

import httpx
import pytest
from fastapi import FastAPI
from fastapi.responses import StreamingResponse

from airflow_provider_raybatch.batch_api.server.files import download, read_pieces
from airflow_provider_raybatch.storage.errors import StorageError
from airflow_provider_raybatch.storage.folder import Folder, LocalFolder

MIB = 2**20
SIZES = [0, 1, MIB - 1, MIB, MIB + 1, 0, 5 * MIB + 7, 3]
CONTENTS = [bytes([number]) * size for number, size in enumerate(SIZES)]


def written(place: Folder) -> Sequence[tuple[str, int]]:
    for number, content in enumerate(CONTENTS):
        place.write(f"part-{number}", content)
    return [(f"part-{number}", size) for number, size in enumerate(SIZES)]


async def answer_of(response: StreamingResponse) -> httpx.Response:
    api = FastAPI()

    @api.get("/content")
    async def content() -> StreamingResponse:
        return response

    async with httpx.AsyncClient(transport=httpx.ASGITransport(api), base_url="http://server") as client:
        return await client.get("/content")


async def test_files_are_one_body(folder: Folder) -> None:
    answer = await answer_of(await download(folder, written(folder)))
    assert answer.content == b"".join(CONTENTS)
    assert answer.headers["content-length"] == str(sum(SIZES))
    assert answer.headers["content-type"] == "application/octet-stream"


@pytest.mark.parametrize("start", [0, 1, MIB, 2 * MIB + 1, sum(SIZES) - 3, sum(SIZES) - 1])
@pytest.mark.parametrize("length", [1, MIB, MIB + 2, sum(SIZES)])
async def test_a_range_is_that_of_the_body(disk: LocalFolder, start: int, length: int) -> None:
    part = b"".join(CONTENTS)[start : start + length]
    answer = await answer_of(await download(disk, written(disk), f"bytes={start}-{start + length - 1}"))
    assert (answer.status_code, answer.content) == (206, part)
    assert answer.headers["content-range"] == f"bytes {start}-{start + len(part) - 1}/{sum(SIZES)}"


async def test_pieces_are_small(disk: LocalFolder) -> None:
    pieces = [piece async for piece in read_pieces(disk, written(disk), range(sum(SIZES)))]
    assert b"".join(pieces) == b"".join(CONTENTS)
    assert max(map(len, pieces)) == MIB


@pytest.mark.parametrize("sizes", [[], [0], [0, 0]])
async def test_nothing_is_an_empty_body(disk: LocalFolder, sizes: list[int]) -> None:
    answer = await answer_of(await download(disk, [(f"part-{number}", 0) for number in range(len(sizes))]))
    assert (answer.content, answer.headers["content-length"]) == (b"", "0")


async def test_a_missing_first_file_is_told_at_once(folder: Folder) -> None:
    with pytest.raises(StorageError):
        await download(folder, [("nothing", 5)])


async def test_a_missing_file_ends_the_body_with_an_error(disk: LocalFolder) -> None:
    files = [*written(disk), ("nothing", 1), ("part-6", 5 * MIB)]
    read = 0
    with pytest.raises(StorageError):  # noqa: PT012
        async for piece in read_pieces(disk, files, range(sum(SIZES) + 1 + 5 * MIB)):
            read += len(piece)
    assert read == sum(SIZES)


async def test_a_file_that_is_shorter_than_said_is_told(disk: LocalFolder) -> None:
    disk.write("x", b"12345")
    with pytest.raises(StorageError) as caught:
        await download(disk, [("x", 6)])
    assert str(caught.value) == f"{disk.uri}/x: it ends at byte 5; was it replaced?"


async def test_few_pieces_are_read_ahead(disk: LocalFolder) -> None:
    """However slowly the client takes them."""
    lock, asked = threading.Lock(), 0

    class Counted(LocalFolder):
        def read_range(self, path: str, start: int, length: int) -> bytes:
            nonlocal asked
            with lock:
                asked += 1
            return super().read_range(path, start, length)

    files = written(disk)
    pieces = read_pieces(Counted(disk.root), files, range(sum(SIZES)))
    for taken in range(1, 4):
        await anext(pieces)
        await asyncio.sleep(0.05)
        assert asked <= taken + 2
    await pieces.aclose()
    assert asked <= 5
