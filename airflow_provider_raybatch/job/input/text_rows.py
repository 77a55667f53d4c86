# SPDX-License-Identifier: Apache-2.0
"""Rows of JSON Lines and CSV.

CSV is read as Python's csv module reads it (RFC 4180), record by record and with its errors. Only a line feed
ends a line. A quoted field ends where a delimiter or a line end follows its quote: without this (the module's
`strict`), a forgotten quote takes the next rows into its field, and quotes inside a field are lost.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, BinaryIO

from airflow_provider_raybatch.contract.arguments.openai_batch import CUSTOM_ID, LINE_COLUMNS
from airflow_provider_raybatch.contract.base import shown
from airflow_provider_raybatch.contract.failures import PreflightError
from airflow_provider_raybatch.contract.json_lines import (
    LONGEST_LINE,
    JsonLineError,
    batch_request,
    is_blank,
    json_object,
)
from airflow_provider_raybatch.contract.text import count_of
from airflow_provider_raybatch.job.input.chunk_rows import BadRow
from airflow_provider_raybatch.job.input.listing import SourceFile

LONGEST_ROW = LONGEST_LINE
"""Bytes; in a longer row, a quote is taken for never closed."""
OTHER_DELIMITERS = ";\t|"
_BLOCK = 8 * 1024 * 1024
_LONGEST_SHOWN = 2000
_NULL = r"\N"
_ESCAPED = re.compile(r"\W", re.ASCII)
"""Characters of a key that may be written as escapes."""
_MARK = "\ufeff"
"""Byte order mark, also inside a file that was joined from several."""


csv.field_size_limit(2**31 - 1)  # the default of 128 KiB is less than many a document


class OpenQuoteError(ValueError):
    """The file ends inside a quoted field. `offset` is the first byte of its row."""

    def __init__(self, offset: int) -> None:
        super().__init__(f"the row at byte {offset} has a quote that is never closed")
        self.offset = offset


def records(text: str, delimiter: str = ",") -> Iterator[list[str] | BadRow]:
    """The records of a text, without blank lines."""
    reader = csv.reader(io.StringIO(text, newline="\n"), delimiter=delimiter, strict=True)
    lines: list[str] = []
    while True:
        before = reader.line_num
        try:
            fields = next(reader)
        except StopIteration:
            return
        except csv.Error as error:  # the next call goes on with the next line
            lines = lines or text.split("\n")
            yield BadRow(f"the row is not CSV ({error})", "\n".join(lines[before : reader.line_num]))
            continue
        if fields:
            yield fields


def row_ends(stream: BinaryIO, start: int, delimiter: str = ",") -> Iterator[tuple[int, bool]]:
    """Where each record from byte `start` on ends, and whether it is a row. Slow.

    :raises OpenQuoteError: the last one does not end.
    """
    stream.seek(start)
    position = start
    is_over = False

    def lines() -> Iterator[str]:
        nonlocal position, is_over
        for line in stream:
            position += len(line)
            yield line.decode("latin-1")  # one character a byte; what csv looks for is ASCII
        is_over = True

    reader = csv.reader(lines(), delimiter=delimiter, strict=True)
    while True:
        first = position
        try:
            is_row = bool(next(reader))
        except StopIteration:
            return
        except csv.Error as error:
            if is_over:  # csv asks for another line only inside of quotes
                raise OpenQuoteError(first) from error
            is_row = True
        yield position, is_row


def line_of(stream: BinaryIO, offset: int) -> int:
    """Number of the line, from 1, in which byte `offset` lies."""
    stream.seek(0)
    line = 1
    while offset and (block := stream.read(min(offset, _BLOCK))):
        offset -= len(block)
        line += block.count(b"\n")
    return line


def first_record(stream: BinaryIO, start: int, file: SourceFile) -> tuple[tuple[str, ...], int]:
    """The fields of the first record (none of an empty file), and the byte after it.

    :param start: first byte, past a byte order mark.
    :raises PreflightError: it is not CSV, or not with this delimiter.
    """
    stream.seek(start)
    position = start
    read: list[str] = []

    def lines() -> Iterator[str]:
        nonlocal position
        for line in stream:
            position += len(line)
            if position - start > LONGEST_ROW:
                raise csv.Error("a quote is never closed")
            read.append(line.decode("utf-8"))
            yield read[-1]

    found: list[str] = []
    why = ""
    try:
        reader = csv.reader(lines(), delimiter=file.delimiter, strict=True)
        found = next((record for record in reader if record), [])
    except UnicodeDecodeError as error:
        raise PreflightError(
            f"source: {file.shown} is not UTF-8 text ({error.reason}); convert it, or set "
            f"{file.options_with(encoding='cp1252')}, or its own encoding."
        ) from error
    except csv.Error as error:
        why = str(error).partition(" - ")[0]  # the rest is about Python
    if file.csv.header is True:
        _check_header(read, found, file)
    if why:
        raise PreflightError(f"source: the header of {file.shown} is not CSV ({why}); mend the file.")
    return tuple(found), position


def _check_header(lines: Sequence[str], found: Sequence[str], file: SourceFile) -> None:
    """Refuse a line that is for Excel, and a header whose fields another delimiter separates."""
    first = (lines or [""])[0].strip()
    if re.fullmatch("sep=.?", first, re.IGNORECASE):
        raise PreflightError(
            f"source: the first line of {file.shown} is {first!r}, which Excel alone reads; remove the line."
        )
    if len(found) > 1 or file.csv.delimiter is not None or file.delimiter != ",":
        return
    line = next((line for line in lines if line.strip()), "")
    fields = {delimiter: _fields(line, delimiter) for delimiter in OTHER_DELIMITERS}
    other = max(fields, key=lambda delimiter: fields[delimiter])
    if fields[other] > 1:
        raise PreflightError(
            f"source: the header of {file.shown} has one column if commas separate them, and {fields[other]} "
            f"with {other!r}; set {file.options_with(delimiter=other)}, or ',' if that is meant."
        )


def _fields(line: str, delimiter: str) -> int:
    try:
        return len(next(csv.reader([line], delimiter=delimiter, strict=True), []))
    except csv.Error:
        return 0


def json_rows(data: bytes) -> list[dict[str, Any] | BadRow]:
    """A row for each line that is not blank."""
    return [_json_row(line) for line in io.BytesIO(data) if not is_blank(line)]


def _json_row(line: bytes) -> dict[str, Any] | BadRow:
    try:
        return json_object(line)
    except JsonLineError as error:
        return BadRow(str(error), _shown(line))


def columns_in(data: bytes, names: Collection[str], most: int) -> set[str]:
    """Those of `names` that any of the first `most` rows has. Only lines that may have one are parsed."""
    marks = {name: f'"{_ESCAPED.split(name)[0]}'.encode() for name in names}
    found: set[str] = set()
    for line in islice((line for line in io.BytesIO(data) if not is_blank(line)), most):
        if left := [name for name, mark in marks.items() if mark in line and name not in found]:
            row = _json_row(line)
            found.update(name for name in left if isinstance(row, dict) and name in row)
    return found


def batch_lines(data: bytes) -> list[dict[str, Any] | BadRow]:
    """Lines of an OpenAI batch file as rows of texts; the body is written as JSON, whatever it is.

    A field that is null or an empty text is null, and other fields of a line are left out.
    """
    return [_batch_line(line) for line in io.BytesIO(data) if not is_blank(line)]


def _batch_line(line: bytes) -> dict[str, Any] | BadRow:
    try:
        found = batch_request(line)
    except JsonLineError as error:
        return BadRow(str(error), _shown(_named(line)))
    for name in LINE_COLUMNS:
        value = found.get(name)
        if name != "body" and value is not None and not isinstance(value, str):
            why = f"{name}: it must be a text in quotes, but it is {shown(value)}"
            return BadRow(why, _shown(_named(line)))
    row: dict[str, Any] = {name: _text(found.get(name)) for name in LINE_COLUMNS}
    if (body := found.get("body")) is not None:
        row["body"] = json.dumps(body, ensure_ascii=False, allow_nan=False)
    return row


def _named(line: bytes) -> bytes:
    """What is kept of a broken line: its id alone, if it can be read, since the line is cut."""
    try:
        return json.dumps({CUSTOM_ID: _text(json_object(line).get(CUSTOM_ID))}).encode()
    except JsonLineError:
        return line


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def csv_rows(data: bytes, header: tuple[str, ...], file: SourceFile) -> list[dict[str, Any] | BadRow]:
    r"""All values stay text, since a leading zero is data; ``\N`` is null, as databases write it."""
    # A header that is a row of the file is repeated in joined ones.
    last = list(header[-1:]) if file.csv.header is True and len(header) > 1 else None
    has_nulls = _NULL.encode() in data
    rows: list[dict[str, Any] | BadRow] = []
    try:
        text, damaged = data.decode("utf-8"), False
    except UnicodeDecodeError:
        text, damaged = data.decode("utf-8", "surrogateescape"), True
    for fields in records(text, file.delimiter):
        if isinstance(fields, BadRow):
            rows.append(replace(fields, text=fields.text[:_LONGEST_SHOWN]))
        elif len(fields) != len(header):
            rows.append(
                BadRow(
                    f"the row has {count_of(len(fields), 'field')}, the header has {len(header)}",
                    _shown(fields),
                )
            )
        elif damaged and any("\udc80" <= character <= "\udcff" for value in fields for character in value):
            options = file.options_with(encoding="cp1252")
            reason = f"the row is not UTF-8 text; set {options}, or its own encoding"
            rows.append(BadRow(reason, _shown(fields)))
        elif fields[-1:] == last and [fields[0].removeprefix(_MARK), *fields[1:]] == list(header):
            reason = "the row is the header line once more; remove it from the file"
            rows.append(BadRow(reason, _shown(fields)))
        else:
            values = [None if value == _NULL else value for value in fields] if has_nulls else fields
            rows.append(dict(zip(header, values, strict=True)))
    return rows


def _shown(raw: bytes | list[str]) -> str:
    text = raw.decode("utf-8", "replace") if isinstance(raw, bytes) else ",".join(raw)
    return text.encode("utf-8", "replace").decode("utf-8")[:_LONGEST_SHOWN]
