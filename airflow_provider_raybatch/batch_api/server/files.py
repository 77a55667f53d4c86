# SPDX-License-Identifier: Apache-2.0
"""``/v1/files``: uploads of a user, and what their batches have made, sent as one body or a range of it."""

from __future__ import annotations

import asyncio
import re
import time
from collections import deque
from collections.abc import AsyncIterator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse

from airflow_provider_raybatch.batch_api.server.access import Caller, usable_models
from airflow_provider_raybatch.batch_api.server.limits import free_bytes
from airflow_provider_raybatch.batch_api.server.objects import (
    EXPIRY,
    OpenAiError,
    deleted_file,
    file_object,
    listing,
    page_of,
)
from airflow_provider_raybatch.batch_api.server.service import BatchService, CallerDep, ServiceDep, ShownFile
from airflow_provider_raybatch.batch_api.server.transfers import InSlot
from airflow_provider_raybatch.batch_api.server.upload import Upload, receive_upload
from airflow_provider_raybatch.batch_api.store.ids import new_file_id, owner_digest
from airflow_provider_raybatch.batch_api.store.records import FileRecord, StoredPiece
from airflow_provider_raybatch.batch_api.store.store import BatchStore, usable
from airflow_provider_raybatch.contract import layout
from airflow_provider_raybatch.contract.base import shown
from airflow_provider_raybatch.contract.failures import FailureClass
from airflow_provider_raybatch.contract.text import count_of
from airflow_provider_raybatch.storage.errors import StorageError
from airflow_provider_raybatch.storage.folder import ReadableFolder
from airflow_provider_raybatch.storage.operations import check_no_links
from airflow_provider_raybatch.storage.stream import write_stream

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


_PAGE = 10_000

router = APIRouter()


@router.post("/files")
async def create_file(request: Request, caller: CallerDep, service: ServiceDep) -> dict[str, Any]:
    """Store an upload; its content comes first and its record last, so that a listed file is whole."""
    free = await service.call(_free, caller, service)
    most = min((one for one in (free, service.limits.max_file_bytes) if one is not None), default=None)
    file_id, store = new_file_id(), await service.call(lambda store: store)
    content = f"{layout.file_folder(file_id)}/{layout.CONTENT}"
    async with service.uploads.slot(caller.id):
        # Credentials of a role may end while the file comes in.
        sink = write_stream(store.root, content, lambda: service.store().root)
        try:
            upload = await receive_upload(request, sink, most)
        except OpenAiError as error:
            if error.status == 413 and most != service.limits.max_file_bytes:
                raise _no_room(service) from None
            raise
    record = _record(file_id, caller, upload, content)
    await service.call(_add, record, service)
    return file_object(record)


@router.get("/files")
async def list_files(
    caller: CallerDep,
    service: ServiceDep,
    purpose: Annotated[str | None, Query()] = None,
    limit: Annotated[str | None, Query()] = None,
    after: Annotated[str | None, Query()] = None,
    order: Annotated[str | None, Query()] = None,
) -> JSONResponse:
    """A page of the caller's files, newest first."""

    def page(store: BatchStore) -> JSONResponse:
        now = time.time()
        kept = store.files(caller.id)
        files = [one for one in kept if one.expires_at > now and purpose in {None, one.purpose}]
        # A client that deletes what it lists asks for what comes after a file that it has deleted; or its
        # last file has expired meanwhile.
        expired = (one.created_at for one in kept if one.id == after and one.expires_at <= now)
        deleted = next(expired, service.deleted_files.get(_deletion(caller, after)))
        gone_at = None if deleted is None else sum(one.created_at > deleted for one in files)
        asked = {"limit": limit, "after": after, "order": order}
        found = page_of([one.id for one in files], default=_PAGE, most=_PAGE, gone_at=gone_at, **asked)
        # Its text is made here: of 10,000 files, it would take the event loop half a second.
        return JSONResponse(listing(_shown(store, caller, service, found.ids), found.has_more))

    return await service.call(page)


@router.get("/files/{file_id}")
async def retrieve_file(file_id: str, caller: CallerDep, service: ServiceDep) -> dict[str, Any]:
    """One of the caller's files."""
    return file_object(await service.call(own_file, caller, file_id))


@router.get("/files/{file_id}/content")
async def file_content(request: Request, file_id: str, caller: CallerDep, service: ServiceDep) -> Response:
    """The content of one of the caller's files or a range of it, in pieces as they are read."""
    tag = f'"{file_id}"'  # a file never changes
    is_whole = request.headers.get("if-range", tag) != tag
    asked = "" if is_whole else request.headers.get("range", "")

    def checked(store: BatchStore) -> tuple[BatchStore, FileRecord]:
        record = own_file(store, caller, file_id)
        check_no_links(store.root, [piece.path for piece in record.content])
        return store, record

    store, record = await service.call(checked)

    async def begun() -> Response:
        try:
            files = [(piece.path, piece.bytes) for piece in record.content]
            answer = await download(store.root, files, asked)
        except StorageError:
            await service.call(own_file, caller, file_id)  # deleted meanwhile
            raise
        answer.headers.update({"Content-Disposition": _attachment(record), "ETag": tag})
        return answer

    return InSlot(service.downloads.slot(caller.id), begun)


@router.delete("/files/{file_id}")
async def delete_file(file_id: str, caller: CallerDep, service: ServiceDep) -> dict[str, Any]:
    """Delete one of the caller's files with its content; an unfinished batch that reads it fails."""

    def delete(store: BatchStore) -> None:
        record = own_file(store, caller, file_id)
        store.delete_file(record)
        service.deleted_files.keep(_deletion(caller, file_id), record.created_at)

    await service.call(delete)
    return deleted_file(file_id)


def own_file(store: BatchStore, caller: Caller, file_id: str) -> FileRecord:
    """A file of the caller's that has not expired.

    :raises OpenAiError: 404, in the same words whether it is another user's, has expired or never was.
    """
    record = store.file(file_id)
    if record is None or record.owner != caller.id or int(record.expires_at) <= time.time():
        raise OpenAiError(404, f"No such File object: {shown(file_id)}", param="file_id")
    return record


def _deletion(caller: Caller, file_id: str | None) -> str:
    """The key of a deletion, which no other user can name, whatever is in user ids."""
    return f"{owner_digest(caller.id)}/{file_id}"


def _free(store: BatchStore, caller: Caller, service: BatchService) -> int | None:
    if next(usable_models(caller), None) is None:
        raise OpenAiError(
            403,
            "Airflow does not let you run batches of any model, so you can't upload files; ask its admin.",
        )
    free = free_bytes(store.files(caller.id), service.limits, time.time())
    if free is not None and free <= 0:
        raise _no_room(service)
    return free


def _add(store: BatchStore, record: FileRecord, service: BatchService) -> None:
    """Add a file, unless others have taken the room for it while it came in."""
    free = free_bytes(store.files(record.owner), service.limits, time.time())
    if free is not None and record.bytes > free:
        store.root.delete([piece.path for piece in record.content])
        raise _no_room(service)
    store.add_file(record)


def _no_room(service: BatchService) -> OpenAiError:
    most = (service.limits.max_user_bytes or 0) / 1e9
    return OpenAiError(
        413,
        f"file: your files would have more than {most:g} GB, the most that one user may store; delete some, "
        "or let them expire sooner by expires_after.",
        param="file",
        code="storage_limit_exceeded",
    )


def _record(file_id: str, caller: Caller, upload: Upload, content: str) -> FileRecord:
    now = time.time()
    return FileRecord(
        id=file_id,
        owner=caller.id,
        filename=upload.filename,
        purpose="batch",
        bytes=upload.bytes,
        created_at=now,
        expires_at=now + (upload.expires_after or EXPIRY[1]),
        content=[StoredPiece(path=content, bytes=upload.bytes)],
        lines=upload.lines,
        sha256=upload.sha256,
    )


def _shown(
    store: BatchStore, caller: Caller, service: BatchService, ids: Sequence[str]
) -> list[dict[str, Any]]:
    """Files that the index has just named, so that what was read of them before still holds."""

    def one(file_id: str) -> ShownFile | None:
        found: ShownFile | None = service.shown_files.get(file_id)
        # Without a record it was deleted meanwhile, or its server died while it was.
        if found is None and (record := store.file(file_id)) is not None:
            found = service.shown_files.keep(file_id, ShownFile(record.owner, file_object(record)))
        return found

    return [found.shown for found in usable(one, ids) if found.owner == caller.id]


def _attachment(record: FileRecord) -> str:
    """Never shown in a browser, and with a name that can't end the header or lead out of a folder."""
    name = record.filename.replace("/", "_").replace("\\", "_") or f"{record.id}.jsonl"
    return f"attachment; filename=\"{record.id}.jsonl\"; filename*=UTF-8''{quote(name, safe='')}"
