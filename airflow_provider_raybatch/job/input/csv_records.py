# SPDX-License-Identifier: Apache-2.0
"""CSV as Python's csv module reads it (RFC 4180), record by record and with its errors.

Only a line feed ends a line. A quoted field ends where a delimiter or a line end follows its quote: without
this (the module's `strict`), a forgotten quote takes the next rows into its field, and quotes inside a field
are lost.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Sequence
from typing import BinaryIO

from airflow_provider_raybatch.contract.failures import PreflightError
from airflow_provider_raybatch.contract.json_lines import LONGEST_LINE
from airflow_provider_raybatch.job.input.chunk_rows import BadRow
from airflow_provider_raybatch.job.input.listing import SourceFile

LONGEST_ROW = LONGEST_LINE
"""Bytes; in a longer row, a quote is taken for never closed."""
OTHER_DELIMITERS = ";\t|"
_BLOCK = 8 * 1024 * 1024

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
    if file.csv.header is True and re.fullmatch("sep=.?", (read or [""])[0].strip(), re.IGNORECASE):
        raise PreflightError(
            f"source: the first line of {file.shown} is {read[0].strip()!r}, which Excel alone reads; remove "
            "the line."
        )
    if file.csv.header is True and len(found) <= 1 and file.csv.delimiter is None and file.delimiter == ",":
        _check_delimiter(read, file)
    if why:
        raise PreflightError(f"source: the header of {file.shown} is not CSV ({why}); mend the file.")
    return tuple(found), position


def _check_delimiter(lines: Sequence[str], file: SourceFile) -> None:
    """Refuse a header whose fields another delimiter separates."""
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
