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
import unicodedata
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass

from fastapi import Request
from starlette.requests import ClientDisconnect

from airflow_provider_raybatch.contract.base import shown
from airflow_provider_raybatch.contract.failures import RaybatchError
from airflow_provider_raybatch.plugins.batch_api.errors import OpenAiError, wrong_field
from airflow_provider_raybatch.plugins.batch_api.form import FILE, FORM_BYTES, UploadForm
from airflow_provider_raybatch.plugins.batch_api.sink import Sink, SinkFeeder

_log = logging.getLogger(__name__)

PURPOSE = "batch"
"""The only purpose that a client may give."""
_ANCHOR, _SECONDS = "expires_after[anchor]", "expires_after[seconds]"
_EXPIRY = (3600, 2_592_000)
"""Seconds that a file may be kept for: from one hour to 30 days."""
LONGEST_NAME = 255
"""Characters of a file's name that are kept."""
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
        raise wrong_field("purpose", f"{purpose[:50]!r} is not {PURPOSE!r}, the only one")
    if form.filename is not None and not shown_name(form.filename).lower().endswith(".jsonl"):
        raise OpenAiError(400, "Invalid file format for Batch API. Must be .jsonl", param=FILE)
    for name in form.fields:
        if name not in {"purpose", _ANCHOR, _SECONDS}:
            raise wrong_field(
                name,
                "there is no such field; files have purpose, file and expires_after",
                "unknown_parameter",
            )


def _accepted(fields: Mapping[str, str]) -> int | None:
    """The seconds after which the file expires, if the fields are those of a file."""
    if "purpose" not in fields:
        raise wrong_field("purpose", f"it is missing; set it to {PURPOSE!r}")
    if not {_ANCHOR, _SECONDS} & fields.keys():
        return None
    anchor, seconds = fields.get(_ANCHOR, ""), fields.get(_SECONDS, "")
    if anchor != "created_at":
        raise wrong_field(_ANCHOR, f"it is {shown(anchor)}; set it to 'created_at'")
    least, most = _EXPIRY
    is_number = seconds.isascii() and seconds.isdecimal() and len(seconds) < 10
    if not is_number or not least <= int(seconds) <= most:
        raise wrong_field(
            _SECONDS, f"it is {shown(seconds)}; set it to a whole number from {least} to {most}"
        )
    return int(seconds)


def shown_name(given: bytes) -> str:
    """The name without folders and control characters, at most :data:`LONGEST_NAME` long; may be empty.

    :param given: the parameter `filename` of a form's part, without its quotes. Browsers and httpx escape
        quotes and line breaks in it.
    """
    name = given.decode("utf-8", errors="replace")
    for escaped, meant in (("%22", '"'), ("%0D", "\r"), ("%0A", "\n")):
        name = name.replace(escaped, meant)
    name = name.replace("\\", "/").rpartition("/")[2]
    # Also marks that turn the direction of a text, and halves of surrogate pairs.
    name = "".join(one for one in name if not unicodedata.category(one).startswith("C")).strip()
    stem, dot, suffix = name.rpartition(".")
    if len(name) > LONGEST_NAME and dot and len(suffix) < 16:
        return stem[: LONGEST_NAME - len(suffix) - 1] + dot + suffix
    return name[:LONGEST_NAME]


def _too_large(max_bytes: int) -> OpenAiError:
    text = f"file: it is larger than {max_bytes / 1e6:g} MB, the most that is accepted; split it."
    return OpenAiError(413, text, param=FILE, code="file_too_large")
