# SPDX-License-Identifier: Apache-2.0
"""Receive a file of ``POST /v1/files``: it goes to storage while it comes in, and is checked on the way.

The parts of the form may come in any order. The file appears in storage once the whole form is there and
accepted; a refused or cut upload leaves nothing there.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass

from fastapi import Request
from starlette.requests import ClientDisconnect

from airflow_provider_raybatch.contract.failures import RaybatchError
from airflow_provider_raybatch.plugins.batch_api.errors import OpenAiError
from airflow_provider_raybatch.plugins.batch_api.filenames import shown_name
from airflow_provider_raybatch.plugins.batch_api.form import FILE, FORM_BYTES, UploadForm
from airflow_provider_raybatch.plugins.batch_api.sink import Sink, SinkFeeder

_log = logging.getLogger(__name__)

PURPOSE = "batch"
"""The only purpose that a client may give."""
_ANCHOR, _SECONDS = "expires_after[anchor]", "expires_after[seconds]"
_EXPIRY = (3600, 2_592_000)
"""Seconds that a file may be kept for: from one hour to 30 days."""
_IDLE = 120.0
"""Seconds without a byte after which an upload is given up."""
_LEAST = 1024 * 1024
"""Bytes that a client sends at least while it is waited for as long: an upload holds memory until its end."""
_REST = 10.0
"""Seconds in which the rest of a refused upload is read: a client reads no answer while it sends."""


@dataclass(frozen=True)
class Upload:
    """A file that was stored.

    :param expires_after: seconds after its creation; ``None`` if the client left it open.
    :param filename: for display alone: without folders and control characters.
    :param lines: as many as have a line break, and one more if the last one has none.
    :param sha256: in hexadecimal.
    """

    purpose: str
    expires_after: int | None
    filename: str
    bytes: int
    lines: int
    sha256: str


async def receive_upload(request: Request, sink: Sink, max_bytes: int | None = None) -> Upload:
    """Store the file of a request.

    :param sink: stores it; called in threads.
    :param max_bytes: of the file; ``None`` for no limit.
    :raises OpenAiError: the upload is refused, was cut, or can't be stored. Nothing is stored then.
    """
    stream = _body(request)
    try:
        form = _form(request, max_bytes)
        async with SinkFeeder(sink) as feeder:
            async for chunk in stream:
                content = form.feed(chunk)
                _refuse_early(form, feeder.size + len(content), max_bytes)
                await feeder.put(content)
            form.close()
            expires_after = _accepted(form.fields)
        name = shown_name(form.filename or b"")
        return Upload(PURPOSE, expires_after, name, feeder.size, feeder.lines, feeder.digest)
    except OpenAiError:
        await _read_rest(request, stream)
        raise
    except RaybatchError as error:
        _log.error("An upload can't be stored: %s", error)
        await _read_rest(request, stream)
        raise OpenAiError(
            503, "The file can't be stored just now; the log of Airflow's API server says why."
        ) from error
    finally:
        await stream.aclose()


async def _body(request: Request) -> AsyncGenerator[bytes, None]:
    waited, size = 0.0, 0
    async with contextlib.aclosing(request.stream()) as stream:
        while True:
            began = time.monotonic()
            try:
                async with asyncio.timeout(_IDLE):
                    chunk = await anext(stream)
            except StopAsyncIteration:
                return
            except TimeoutError:
                raise OpenAiError(408, f"Nothing was sent for {_IDLE:g} s; send the file again.") from None
            except ClientDisconnect:
                raise OpenAiError(400, "The connection ended before the file did.") from None
            waited, size = waited + time.monotonic() - began, size + len(chunk)
            if waited >= _IDLE:
                if size < _LEAST:
                    raise OpenAiError(
                        408, f"Less than {_LEAST // 1024} KiB came in {_IDLE:g} s; send the file faster."
                    )
                waited, size = 0.0, 0
            yield chunk


async def _read_rest(request: Request, stream: AsyncGenerator[bytes, None]) -> None:
    if request.headers.get("expect", "").lower() == "100-continue":
        return  # this client reads the answer first
    with contextlib.suppress(OpenAiError, TimeoutError):
        async with asyncio.timeout(_REST):
            async for _ in stream:
                pass


def _form(request: Request, max_bytes: int | None) -> UploadForm:
    encoding = request.headers.get("content-encoding", "identity")
    if encoding.lower() != "identity":
        raise OpenAiError(415, f"Content-Encoding: {encoding[:50]!r} is not supported; send the body as is.")
    length = request.headers.get("content-length", "")
    announced = int(length) if length.isdecimal() and len(length) < 20 else 0
    if max_bytes is not None and announced > max_bytes + FORM_BYTES:
        raise _too_large(max_bytes)
    return UploadForm(request.headers.get("content-type", ""))


def _refuse_early(form: UploadForm, size: int, max_bytes: int | None) -> None:
    """Refuse as soon as possible, so that little is sent in vain."""
    if max_bytes is not None and size > max_bytes:
        raise _too_large(max_bytes)
    if (purpose := form.fields.get("purpose", PURPOSE)) != PURPOSE:
        raise OpenAiError(
            400, f"purpose: {purpose[:50]!r} is not {PURPOSE!r}, the only one.", param="purpose"
        )
    if form.filename is not None and not shown_name(form.filename).lower().endswith(".jsonl"):
        raise OpenAiError(400, "Invalid file format for Batch API. Must be .jsonl", param=FILE)
    for name in form.fields:
        if name not in {"purpose", _ANCHOR, _SECONDS}:
            shown = name[:64]
            raise OpenAiError(
                400,
                f"Unknown parameter: {shown!r}; files have purpose, file and expires_after.",
                param=shown,
                code="unknown_parameter",
            )


def _accepted(fields: Mapping[str, str]) -> int | None:
    """The seconds after which the file expires, if the fields are those of a file."""
    if "purpose" not in fields:
        raise OpenAiError(400, f"purpose: it is missing; set it to {PURPOSE!r}.", param="purpose")
    anchor, seconds = fields.get(_ANCHOR), fields.get(_SECONDS)
    if anchor is None and seconds is None:
        return None
    if anchor != "created_at":
        given = "missing" if anchor is None else f"{anchor[:50]!r}"
        raise OpenAiError(400, f"{_ANCHOR}: it is {given}; set it to 'created_at'.", param=_ANCHOR)
    least, most = _EXPIRY
    is_number = seconds is not None and seconds.isascii() and seconds.isdecimal() and len(seconds) < 10
    if seconds is None or not is_number or not least <= int(seconds) <= most:
        given = "missing" if seconds is None else f"{seconds[:50]!r}"
        text = f"{_SECONDS}: it is {given}; set it to a whole number from {least} to {most}."
        raise OpenAiError(400, text, param=_SECONDS)
    return int(seconds)


def _too_large(max_bytes: int) -> OpenAiError:
    text = f"file: it is larger than {max_bytes / 1e6:g} MB, the most that is accepted; split it."
    return OpenAiError(413, text, param=FILE, code="file_too_large")
