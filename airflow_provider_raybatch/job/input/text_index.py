# SPDX-License-Identifier: Apache-2.0
"""Finds where the rows of a text file begin, in one fast pass, so that text can be cut like Parquet.

A row ends at a line feed; in CSV only after an even number of double quotes (RFC 4180). Blank lines are not
rows. From the first irregular quote or carriage return of a CSV file on, the csv module finds the rows, since
it also reads them later.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from airflow_provider_raybatch.contract.json_lines import LONGEST_BLANK, is_blank
from airflow_provider_raybatch.job.input import text_rows

_BLOCK = 8 * 1024 * 1024
_SLOW_BATCH = 65_536
_CELL_BYTES = 16 * 1024 * 1024
"""Bytes after which a cell ends with the block, however few rows it has."""
_WHITE_SPACE = np.frombuffer(b" \t\r\n\x0b\x0c", dtype=np.uint8)
CELL_ROWS = 128

_Ends = tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]
"""The byte after each line, and whether the line is a row."""


@dataclass(frozen=True)
class Cell:
    """A run of whole lines: bytes `start` to `stop` hold `rows` rows."""

    start: int
    stop: int
    rows: int


class LongRowError(ValueError):
    """A row is longer than any should be."""


def index(
    stream: BinaryIO,
    *,
    quoted: bool,
    start: int = 0,
    cell_rows: int = CELL_ROWS,
    block: int = _BLOCK,
    delimiter: str = ",",
) -> Iterator[Cell]:
    """Cut a text file into cells of `cell_rows` rows, or of fewer where rows are long.

    :param quoted: whether the text is CSV, with fields apart by `delimiter`.
    :param start: first byte, past a header.
    :param block: bytes read at once.
    :raises LongRowError: a row is longer than :data:`text_rows.LONGEST_ROW`.
    :raises text_rows.OpenQuoteError: the file ends inside a quoted field.
    """
    open_rows, stop = 0, start
    for ends, is_row in _lines(stream, quoted, start, block, delimiter):
        rows = np.cumsum(is_row)
        count = int(rows[-1])
        for wanted in range(cell_rows - open_rows, count + 1, cell_rows):
            cut = int(ends[np.searchsorted(rows, wanted)])
            yield Cell(start, cut, cell_rows)
            start = cut
        open_rows = (open_rows + count) % cell_rows
        stop = int(ends[-1])
        if open_rows and stop - start >= _CELL_BYTES:
            yield Cell(start, stop, open_rows)
            start, open_rows = stop, 0
    if open_rows:
        yield Cell(start, stop, open_rows)


def _lines(stream: BinaryIO, quoted: bool, start: int, block: int, delimiter: str) -> Iterator[_Ends]:
    """The ends of all lines, in batches that are not empty."""
    stream.seek(start)
    offset, data = start, b""  # `data` begins at the byte `offset`, always the start of a line
    while True:
        read = stream.read(block)
        data += read
        ends = _line_ends(data, quoted, delimiter, last=not read)
        if ends is None:
            yield from _exact(stream, offset, delimiter)
            return
        if quoted and not read and data.count(b'"') % 2:
            raise text_rows.OpenQuoteError(offset + int(ends[-2] if len(ends) > 1 else 0))
        if len(ends):
            yield ends + offset, _is_row(data, ends, quoted)
            used = int(ends[-1])
            offset, data = offset + used, data[used:]
        if not read:
            return
        if len(data) > text_rows.LONGEST_ROW:
            raise LongRowError(f"the row at byte {offset} is longer than {text_rows.LONGEST_ROW >> 20} MiB")


def _line_ends(data: bytes, quoted: bool, delimiter: str, last: bool) -> npt.NDArray[np.int64] | None:
    """The byte after each line; ``None`` where only the csv module can tell.

    :param last: whether the file ends here, so that its last line needs no line feed.
    """
    codes = np.frombuffer(data, dtype=np.uint8)
    ends = np.flatnonzero(codes == 10)
    if quoted:
        quotes = np.flatnonzero(codes == 34)
        if _is_irregular(data, codes, quotes, delimiter):
            return None
        ends = ends[np.searchsorted(quotes, ends) % 2 == 0]
    ends = (ends + 1).astype(np.int64)
    if last and len(data) and (not len(ends) or ends[-1] != len(data)):
        ends = np.append(ends, len(data))
    return ends


def _is_irregular(
    data: bytes, codes: npt.NDArray[np.uint8], quotes: npt.NDArray[np.int64], delimiter: str
) -> bool:
    """Whether the csv module may see other rows than the parity of the quotes shows.

    That is where a quote stands inside an unquoted field, where text follows a closing quote, at a carriage
    return without a line feed and, on Python 3.10, at a NUL.
    """
    opening, closing = quotes[::2], quotes[1::2]
    before = codes[opening[opening > 0] - 1]
    after = codes[closing[closing < len(codes) - 1] + 1]
    around = (10, 34, ord(delimiter))
    if not (np.isin(before, around).all() and np.isin(after, (13, *around)).all()):
        return True
    returns = data.count(b"\r") - data.endswith(b"\r")
    return returns != data.count(b"\r\n") or b"\0" in data


def _exact(stream: BinaryIO, offset: int, delimiter: str) -> Iterator[_Ends]:
    found = text_rows.row_ends(stream, offset, delimiter)
    while batch := list(itertools.islice(found, _SLOW_BATCH)):
        ends, is_row = zip(*batch, strict=True)
        yield np.array(ends, dtype=np.int64), np.array(is_row, dtype=np.bool_)


def _is_row(data: bytes, ends: npt.NDArray[np.int64], quoted: bool) -> npt.NDArray[np.bool_]:
    """Which lines are not blank; in CSV, spaces are a value."""
    starts = np.concatenate((np.zeros(1, dtype=np.int64), ends[:-1]))
    is_row: npt.NDArray[np.bool_] = np.ones(len(ends), dtype=np.bool_)
    first = np.frombuffer(data, dtype=np.uint8)[starts]
    may_be_blank = (ends - starts <= LONGEST_BLANK) & np.isin(first, _WHITE_SPACE)
    for line in np.flatnonzero(may_be_blank):
        text = data[starts[line] : ends[line]]
        is_row[line] = bool(text.strip(b"\r\n")) if quoted else not is_blank(text)
    return is_row
