# SPDX-License-Identifier: Apache-2.0
"""Forms of uploads, byte by byte, and an app that takes them."""

from __future__ import annotations

import contextlib
import dataclasses
import socket
import threading
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from typing import Any

import httpx
import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, StreamingResponse

from airflow_provider_raybatch.batch_api.server.files import download
from airflow_provider_raybatch.batch_api.server.objects import OpenAiError
from airflow_provider_raybatch.batch_api.server.upload import receive_upload
from airflow_provider_raybatch.storage.folder import Folder
from airflow_provider_raybatch.storage.stream import write_stream

BOUNDARY = b"0123456789abcdef"
CONTENT_TYPE = "multipart/form-data; boundary=" + BOUNDARY.decode()
CONTENT = "uploaded/content.jsonl"

PURPOSE = (b'form-data; name="purpose"', b"batch")
EXPIRES = (
    (b'form-data; name="expires_after[anchor]"', b"created_at"),
    (b'form-data; name="expires_after[seconds]"', b"3600"),
)


def file_part(content: bytes, name: bytes = b"night.jsonl") -> tuple[bytes, bytes]:
    return b'form-data; name="file"; filename="' + name + b'"', content


def form(*parts: tuple[bytes, bytes], boundary: bytes = BOUNDARY) -> bytes:
    """Return a form of parts, each a content disposition and a content."""
    written = [
        b"--" + boundary + b"\r\nContent-Disposition: " + disposition + b"\r\n\r\n" + content + b"\r\n"
        for disposition, content in parts
    ]
    return b"".join([*written, b"--" + boundary + b"--\r\n"])


def app(folder: Folder, max_bytes: int | None = None) -> FastAPI:
    """Return an app that stores each upload under the same name, and sends it as the content of `file-1`.

    The content of another file has another part, which may be missing.
    """
    api = FastAPI()

    @api.post("/v1/files")
    async def create(request: Request) -> dict[str, Any]:
        return dataclasses.asdict(await receive_upload(request, write_stream(folder, CONTENT), max_bytes))

    @api.get("/v1/files/{name}/content")
    async def content(name: str) -> StreamingResponse:
        entry = folder.head(CONTENT)
        assert entry is not None
        return await download(folder, [(CONTENT, entry.size), *[(name, 5)] * (name != "file-1")])

    def refused(request: Request, error: Any) -> JSONResponse:
        return JSONResponse(error.body, error.status)

    api.add_exception_handler(OpenAiError, refused)
    return api


@contextlib.contextmanager
def served(api: FastAPI) -> Iterator[str]:
    """Serve an app by uvicorn in a thread, as Airflow does; yield its address."""
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(api, log_level="critical", lifespan="off"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(20)
        listener.close()


def in_chunks(body: bytes, size: int) -> Iterator[bytes]:
    return (body[start : start + size] for start in range(0, len(body), size))


async def post(
    api: FastAPI, body: bytes | Iterable[bytes], headers: Mapping[str, str] | None = None
) -> httpx.Response:
    """Send a body to the app, in this process; the chunks of an iterable arrive one by one."""

    async def chunks() -> AsyncIterator[bytes]:
        for chunk in [body] if isinstance(body, bytes) else body:
            yield chunk

    transport = httpx.ASGITransport(api, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
        sent = {"Content-Type": CONTENT_TYPE, **(headers or {})}
        return await client.post("/v1/files", content=chunks(), headers=sent)
