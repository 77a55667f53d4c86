# SPDX-License-Identifier: Apache-2.0
"""Receive a file of ``POST /v1/files``: it goes to storage while it comes in, and is checked on the way.

The parts of the form may come in any order, and are read as they come: Starlette's own parser would write
the whole file to a temporary disk before the first byte can be stored. The file appears in storage once the
form is accepted as a whole; a refused or cut upload leaves nothing there.
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
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.requests import ClientDisconnect

from airflow_provider_raybatch.batch_api.server.objects import EXPIRY, OpenAiError, wrong_field
from airflow_provider_raybatch.batch_api.server.sink import Sink, SinkFeeder
from airflow_provider_raybatch.contract.base import shown
from airflow_provider_raybatch.contract.failures import RaybatchError

_log = logging.getLogger(__name__)

FILE = "file"
"""Name of the part with the file."""
FORM_BYTES = 64 * 1024
"""Of the body, without the file's content: boundaries, headers, fields and what follows the form."""
_AS_IS = frozenset({b"", b"7bit", b"8bit", b"binary"})
PURPOSE = "batch"
"""The only purpose that a client may give."""
_ANCHOR, _SECONDS = "expires_after[anchor]", "expires_after[seconds]"
LONGEST_NAME = 255
"""Characters of a file's name that are kept."""
_IDLE = 120.0
"""Seconds without a byte after which an upload is given up."""
_LEAST = 1024 * 1024
"""Bytes that a client sends at least while it is waited for as long: an upload holds memory until its end."""
_REST = 10.0
"""Seconds in which the rest of a refused upload is read: a client reads no answer while it sends."""


class UploadForm:
    """A form of type ``multipart/form-data``.

    :param content_type: the header of the request.
    :ivar fields: the small fields that are complete.
    :ivar filename: the file's name as given; ``None`` before the file has begun.
    :raises OpenAiError: the header does not describe such a form.
    """

    def __init__(self, content_type: str) -> None:
        kind, parameters = parse_options_header(content_type)
        boundary = parameters.get(b"boundary")
        if kind != b"multipart/form-data" or not boundary:
            raise wrong_field(
                "Content-Type",
                f"{content_type[:100]!r} is not 'multipart/form-data' with a boundary; let the client's "
                "library write it",
            )
        self.fields: dict[str, str] = {}
        self.filename: bytes | None = None
        self._content = bytearray()
        self._around = 0
        self._ended = False
        self._part: str = ""
        self._field = bytearray()
        self._headers: dict[bytes, bytes] = {}
        self._header, self._value = bytearray(), bytearray()
        try:
            self._parser = MultipartParser(
                boundary,
                {
                    "on_part_begin": self._headers.clear,
                    "on_header_field": lambda data, start, end: self._header.extend(data[start:end]),
                    "on_header_value": lambda data, start, end: self._value.extend(data[start:end]),
                    "on_header_end": self._on_header_end,
                    "on_headers_finished": self._on_headers_finished,
                    "on_part_data": self._on_part_data,
                    "on_part_end": self._on_part_end,
                    "on_end": self._on_end,
                },
            )
        except FormParserError as error:
            raise wrong_field("Content-Type", f"its boundary can't be used ({error})") from None

    def feed(self, chunk: bytes) -> bytes:
        """Read on; return what the chunk holds of the file's content.

        :raises OpenAiError: this is not an acceptable form.
        """
        try:
            self._parser.write(chunk)
        except FormParserError as error:
            raise OpenAiError(
                400, f"The body is not a valid form ({error}); send it as an HTTP library does."
            ) from None
        content = bytes(self._content)
        self._content.clear()
        self._around += len(chunk) - len(content)
        if self._around > FORM_BYTES:
            raise OpenAiError(
                400, f"The form has more than {FORM_BYTES // 1024} KiB besides the file; send nothing else."
            )
        return content

    def close(self) -> None:
        """The body has ended. :raises OpenAiError: the form has not, or had no file."""
        if not self._ended:
            raise OpenAiError(400, "The body ends before the form does; send it whole.")
        if self.filename is None:
            raise wrong_field(FILE, "it is missing; send it as a part with a filename")

    def _on_header_end(self) -> None:
        self._headers[bytes(self._header).lower()] = bytes(self._value).strip()
        self._header.clear()
        self._value.clear()

    def _on_headers_finished(self) -> None:
        kind, parameters = parse_options_header(self._headers.get(b"content-disposition", b""))
        if kind != b"form-data" or b"name" not in parameters:
            raise OpenAiError(400, "A part of the form has no name; send Content-Disposition: form-data.")
        self._part = parameters[b"name"].decode("utf-8", errors="replace")
        self._field.clear()
        is_form = self._headers.get(b"content-type", b"").lower().startswith(b"multipart/")
        if is_form or self._headers.get(b"content-transfer-encoding", b"").lower() not in _AS_IS:
            raise wrong_field(self._part, "it is a form itself, or encoded; send it as it is")
        if self._part in self.fields or (self._part == FILE and self.filename is not None):
            raise wrong_field(self._part, "the form has it twice; send it once")
        if self._part == FILE:
            if b"filename" not in parameters:
                raise wrong_field(FILE, "it has no filename; send it as a file")
            self.filename = parameters[b"filename"]

    def _on_part_data(self, data: bytes, start: int, end: int) -> None:
        into = self._content if self._part == FILE else self._field
        into += data[start:end]

    def _on_part_end(self) -> None:
        if self._part != FILE:
            self.fields[self._part] = bytes(self._field).decode("utf-8", errors="replace")

    def _on_end(self) -> None:
        self._ended = True


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
    least, most = EXPIRY
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
