# SPDX-License-Identifier: Apache-2.0
"""Looks at each file of the input once, and cuts the input into chunks, which are read at once."""

from __future__ import annotations

import threading
from array import array
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, BinaryIO, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from airflow_provider_raybatch.contract.arguments.data import SourceFormat
from airflow_provider_raybatch.contract.failures import PreflightError
from airflow_provider_raybatch.contract.secrets import AwsCredentials
from airflow_provider_raybatch.job.input import arrow_batches, content, text_rows
from airflow_provider_raybatch.job.input.listing import Listing, SourceFile
from airflow_provider_raybatch.job.input.opening import open_file, with_content
from airflow_provider_raybatch.job.input.table import check_names, plain_schema
from airflow_provider_raybatch.job.input.text_index import CELL_ROWS, LongRowError, index
from airflow_provider_raybatch.storage.errors import error_prefix
from airflow_provider_raybatch.storage.file import checked_footer

_THREADS = 16
CARRIED_BYTES = 16 * 1024 * 1024
"""Of small files that travel with the job; no step reads these from a store again."""
_SMALL_FILE = 4 * 1024 * 1024
_SMALL_CELL = 8
CHUNK_BYTES = 64 * 1024 * 1024
"""Bytes of a chunk, unless a single row or index cell has more: long rows make chunks of few rows."""
_MOST_ROWS = 2**31 - 1
"""Of a piece."""
_BOM = b"\xef\xbb\xbf"
ROWS_PER_CHUNK = 4096
"""Size of a chunk that is only read, without requests to an engine."""
Numbers: TypeAlias = npt.NDArray[np.signedinteger[Any]]


@dataclass(frozen=True, slots=True)
class Chunk:
    """A run of rows of one file.

    :param file: position in the listing.
    :param ordinal: position of its first row in the whole input.
    :param rows: how many rows.
    :param group: Parquet row group, or first byte of an Arrow batch; -1 for text.
    :param start: first row within the row group, or first byte of a text file.
    :param stop: one past the last row or byte.
    """

    file: int
    ordinal: int
    rows: int
    group: int
    start: int
    stop: int


@dataclass(frozen=True)
class Surveyed:
    """Where all files can be cut, and their columns.

    Pieces are row groups of Parquet or batches of Arrow, cut where they are large, or index cells of text.
    They lie in arrays, since a small text file has a cell for every few rows.

    :param bounds: place of each file's first piece, and the number of all pieces.
    :param starts: first row of each piece within its row group, or its first byte.
    :param sizes: rows of each piece.
    :param groups: Parquet row group of each piece, or first byte of its Arrow batch; empty for text.
    :param ends: one past the last byte of the rows of each text file.
    :param schemas: columns of each file; for JSONL unknown until rows are read.
    :param contents: content of each file that travels with the job.
    """

    bounds: Numbers
    starts: Numbers
    sizes: Numbers
    groups: Numbers
    ends: Numbers
    schemas: tuple[pa.Schema | None, ...]
    contents: tuple[bytes | None, ...]

    @property
    def rows(self) -> int:
        """Of all files."""
        return int(self.sizes.sum(dtype=np.int64))


@dataclass(frozen=True)
class Source:
    """The frozen input.

    :param columns: names of the input columns, in order; for JSONL those of the first rows, and of later
        rows those that arguments name.
    :param schema: Arrow types, as far as the source or its first rows show them.
    :param rows: rows of the input, `limit` applied.
    :param mixed: columns of JSONL whose values are of several types.
    """

    listing: Listing
    surveyed: Surveyed
    columns: list[str]
    schema: pa.Schema
    rows: int
    mixed: frozenset[str] = frozenset()

    def chunks(self, rows_per_chunk: int) -> list[Chunk]:
        """The input, cut; always the same rows whatever the size."""
        return cut(self.surveyed, rows_per_chunk, self.rows)


def survey(listing: Listing, credentials: AwsCredentials | None) -> Surveyed:
    """Read the footer of each Parquet file, the headers of each Arrow file, or the whole of each text file.

    :raises PreflightError: a file is not what its format says.
    :raises StorageError: a file can't be read.
    """
    room, lock = CARRIED_BYTES, threading.Lock()

    def look(file: SourceFile) -> _Look:
        nonlocal room
        file = with_content(file, credentials)
        found = _looked_at(file, listing.format, credentials)
        with lock:
            if file.content is not None and len(file.content) <= room:
                room -= len(file.content)
                return replace(found, content=file.content)
        return found

    found, bounds, ends = _Look(), array("q", [0]), array("q")
    schemas: list[pa.Schema | None] = []
    contents: list[bytes | None] = []
    same: dict[pa.Schema, pa.Schema] = {}
    with error_prefix("source"), ThreadPoolExecutor(_THREADS) as pool:
        for one in pool.map(look, listing.files):
            found.starts.extend(one.starts)
            found.sizes.extend(one.sizes)
            found.groups.extend(one.groups)
            bounds.append(len(found.starts))
            ends.append(one.end)
            contents.append(one.content)
            schemas.append(None if one.schema is None else same.setdefault(one.schema, one.schema))
    return Surveyed(
        np.asarray(bounds),
        np.asarray(found.starts),
        np.asarray(found.sizes),
        np.asarray(found.groups),
        np.asarray(ends),
        tuple(schemas),
        tuple(contents),
    )


def _looked_at(file: SourceFile, kind: SourceFormat, credentials: AwsCredentials | None) -> _Look:
    if kind == "parquet":
        return _look_parquet(file, credentials)
    return _look_arrow(file, credentials) if kind == "arrow" else _look_text(file, kind, credentials)


def cut(surveyed: Surveyed, rows_per_chunk: int, limit: int | None) -> list[Chunk]:
    """Chunks of about `rows_per_chunk` rows, at most `limit` rows in all, with their ordinals.

    Text is cut at index cells, Parquet exactly.
    """
    chunks: list[Chunk] = []
    ordinal = 0
    pieces = _joined if not len(surveyed.groups) else _split
    for file in range(len(surveyed.schemas)):
        for part in pieces(surveyed, file, rows_per_chunk):
            if limit is not None and ordinal + part.rows > limit:
                # A text chunk keeps its bytes: the reader stops after `rows` rows.
                left = limit - ordinal
                stop = part.start + left if part.group >= 0 else part.stop
                part = replace(part, rows=left, stop=stop)
            if part.rows > 0:
                chunks.append(replace(part, ordinal=ordinal))
                ordinal += part.rows
            if limit is not None and ordinal >= limit:
                return chunks
    return chunks


def _joined(surveyed: Surveyed, file: int, rows_per_chunk: int) -> Iterator[Chunk]:
    """Neighbouring cells of a text file."""
    cells = slice(*surveyed.bounds[file : file + 2].tolist())
    starts = surveyed.starts[cells]
    stops = np.append(starts[1:], surveyed.ends[file])
    rows = np.cumsum(surveyed.sizes[cells], dtype=np.int64)
    first = before = 0
    while first < len(starts):
        start = int(starts[first])
        last = min(
            int(np.searchsorted(rows, before + rows_per_chunk, "right")),
            int(np.searchsorted(stops, start + CHUNK_BYTES, "right")),
        )
        last = max(first, last - 1)
        yield Chunk(file, 0, int(rows[last]) - before, -1, start, int(stops[last]))
        first, before = last + 1, int(rows[last])


def _split(surveyed: Surveyed, file: int, rows_per_chunk: int) -> Iterator[Chunk]:
    """Pieces of a file's row groups or batches."""
    for piece in range(*surveyed.bounds[file : file + 2].tolist()):
        first, end = int(surveyed.starts[piece]), int(surveyed.starts[piece] + surveyed.sizes[piece])
        for start in range(first, end, rows_per_chunk):
            stop = min(start + rows_per_chunk, end)
            yield Chunk(file, 0, stop - start, int(surveyed.groups[piece]), start, stop)


@dataclass
class _Look:
    """What one file has; see :class:`Surveyed`."""

    starts: array[int] = field(default_factory=lambda: array("q"))
    sizes: array[int] = field(default_factory=lambda: array("i"))
    groups: array[int] = field(default_factory=lambda: array("q"))
    end: int = 0
    schema: pa.Schema | None = None
    content: bytes | None = None

    def add_cell(self, start: int, rows: int, stop: int) -> None:
        """Add rows of text; the next ones start where they stop."""
        self.starts.append(start)
        self.sizes.append(rows)
        self.end = stop

    def add(self, group: int, rows: int, step: int) -> None:
        """Add a row group or batch, in pieces of at most `step` rows."""
        for start in range(0, rows, step):
            self.starts.append(start)
            self.sizes.append(min(step, rows - start))
            self.groups.append(group)


def _look_parquet(file: SourceFile, credentials: AwsCredentials | None) -> _Look:
    with open_file(file, credentials) as stream:
        try:
            meta = pq.read_metadata(pa.BufferReader(checked_footer(stream, needed=False)))
            schema = pq.ParquetFile(stream, metadata=meta).schema_arrow
        except pa.ArrowNotImplementedError as error:
            raise PreflightError(
                f"source: {file.shown} has a type that Arrow can't read ({_first_line(error)}); cast that "
                "column to another type, or leave it out."
            ) from error
        except (pa.ArrowInvalid, OSError) as error:
            content.check_binary(file, stream, "Parquet")
            raise PreflightError(
                f"source: {file.shown} is not a readable Parquet file ({_first_line(error)}); write it again."
            ) from error
    look = _Look(schema=_plain_columns(file, schema))
    for group in range(meta.num_row_groups):
        look.add(group, meta.row_group(group).num_rows, rows_of_bytes(meta, group))
    return look


def _look_arrow(file: SourceFile, credentials: AwsCredentials | None) -> _Look:
    with open_file(file, credentials) as stream:
        try:
            schema, batches = arrow_batches.batches(stream)
        except (arrow_batches.ArrowFileError, pa.ArrowException) as error:
            content.check_binary(file, stream, "Arrow")
            raise PreflightError(
                f"source: {file.shown} can't be read as Arrow ({_first_line(error)}); write it again, or as "
                "Parquet."
            ) from error
    look = _Look(schema=_plain_columns(file, schema))
    for batch in batches:
        look.add(batch.at, batch.rows, _rows_of_bytes(batch.rows, batch.body))
    return look


def _plain_columns(file: SourceFile, schema: pa.Schema) -> pa.Schema:
    check_names(schema.names, file.uri)
    return plain_schema(schema)


def rows_of_bytes(meta: pq.FileMetaData, group: int) -> int:
    """Rows of a row group that :data:`CHUNK_BYTES` hold, if all are of one size; at least 1."""
    found = meta.row_group(group)
    return _rows_of_bytes(found.num_rows, found.total_byte_size)


def _rows_of_bytes(rows: int, size: int) -> int:
    return max(1, min(_MOST_ROWS, int(CHUNK_BYTES * rows / max(1, size))))


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or ["unknown reason"])[0][:200]


def _look_text(file: SourceFile, kind: SourceFormat, credentials: AwsCredentials | None) -> _Look:
    is_csv = kind == "csv"
    # A small file may have to feed several replicas; a large one's index must not fill the memory.
    cell_rows = _SMALL_CELL if file.size < _SMALL_FILE else CELL_ROWS
    with open_file(file, credentials) as stream:
        content.check_text(file, "csv" if is_csv else "jsonl", stream)
        columns, start = text_start(file, stream, is_csv)
        look = _Look(schema=pa.schema([(name, pa.string()) for name in columns]) if is_csv else None)
        first = b"" if is_csv else content.first_line(stream, start)
        cells = index(stream, quoted=is_csv, start=start, cell_rows=cell_rows, delimiter=file.delimiter)
        try:
            for cell in cells:
                look.add_cell(cell.start, cell.rows, cell.stop)
        except LongRowError as error:
            why = "is a quote never closed?" if is_csv else f"JSONL has one object a line; {content.LINES}."
            raise PreflightError(
                f"source: {file.shown} is not {'CSV' if is_csv else 'JSONL'}, {error}; {why}"
            ) from error
        except text_rows.OpenQuoteError as error:
            line = text_rows.line_of(stream, error.offset)
            raise PreflightError(
                f"source: {file.shown} ends inside a quoted field of the row that begins in line {line}; "
                "close the quote there, or write the file again if it was cut off."
            ) from error
        if kind == "jsonl":  # a broken line of a batch file is answered, as the first one is
            content.check_lines(file, stream, start, first, sum(look.sizes))
    return look


def text_start(file: SourceFile, stream: BinaryIO, is_csv: bool) -> tuple[tuple[str, ...], int]:
    """Columns of a CSV file (none of JSONL), and the byte where the rows begin.

    :raises PreflightError: the header is not CSV, has a column twice, or does not fit the rows.
    """
    start = len(_BOM) if stream.read(len(_BOM)) == _BOM else 0
    if not is_csv:
        return (), start
    fields, after = text_rows.first_record(stream, start, file)
    header = file.csv.header
    if header is True:
        check_names(fields, file.uri)
        return fields, after
    names = header or tuple(f"column_{number}" for number, _ in enumerate(fields, 1))
    if fields and len(names) != len(fields):
        raise PreflightError(
            f"csv_options: header has {len(names)} names, and the first row of {file.shown} has "
            f"{len(fields)} fields; name each column, or set delimiter."
        )
    return names, start
