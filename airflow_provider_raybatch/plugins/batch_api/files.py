# SPDX-License-Identifier: Apache-2.0
"""``/v1/files``: uploads of a user, and what their batches have made."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import JSONResponse

from airflow_provider_raybatch.batches.store import BatchStore, usable
from airflow_provider_raybatch.contract import layout
from airflow_provider_raybatch.contract.base import shown
from airflow_provider_raybatch.contract.batch_api.ids import new_file_id, owner_digest
from airflow_provider_raybatch.contract.batch_api.records import FileRecord, StoredPiece
from airflow_provider_raybatch.plugins.batch_api.auth import Caller
from airflow_provider_raybatch.plugins.batch_api.download import download
from airflow_provider_raybatch.plugins.batch_api.errors import OpenAiError
from airflow_provider_raybatch.plugins.batch_api.limits import free_bytes
from airflow_provider_raybatch.plugins.batch_api.models import usable_models
from airflow_provider_raybatch.plugins.batch_api.objects import deleted_file, file_object, listing, page_of
from airflow_provider_raybatch.plugins.batch_api.service import (
    BatchService,
    CallerDep,
    ServiceDep,
    ShownFile,
)
from airflow_provider_raybatch.plugins.batch_api.transfers import InSlot
from airflow_provider_raybatch.plugins.batch_api.upload import Upload, receive_upload
from airflow_provider_raybatch.storage.errors import StorageError
from airflow_provider_raybatch.storage.names import check_no_links
from airflow_provider_raybatch.storage.stream import write_stream

_KEPT_FOR = 30 * 24 * 3600
"""Seconds that an upload is kept for if the client gives none; OpenAI's default for batch files."""
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
        expires_at=now + (upload.expires_after or _KEPT_FOR),
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
