# SPDX-License-Identifier: Apache-2.0
"""The form of an upload, read as it comes in: small fields, and one file that is passed on in pieces.

Starlette's own parser would write the whole file to a temporary disk before the first byte can be stored.
"""

from __future__ import annotations

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from airflow_provider_raybatch.plugins.batch_api.errors import OpenAiError, wrong_field

FILE = "file"
"""Name of the part with the file."""
FORM_BYTES = 64 * 1024
"""Of the body, without the file's content: boundaries, headers, fields and what follows the form."""
_AS_IS = frozenset({b"", b"7bit", b"8bit", b"binary"})


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
