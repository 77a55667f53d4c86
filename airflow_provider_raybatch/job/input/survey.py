# SPDX-License-Identifier: Apache-2.0
"""The frozen input: its files looked at once, and cut into chunks, which are read together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_provider_raybatch.contract.failures import PreflightError
from airflow_provider_raybatch.contract.secrets import AwsCredentials
from airflow_provider_raybatch.job.input import csv_records
from airflow_provider_raybatch.job.input.listing import Listing, SourceFile
from airflow_provider_raybatch.job.input.opening import open_file
from airflow_provider_raybatch.job.input.plain_types import plain_schema
from airflow_provider_raybatch.job.input.table import check_names
from airflow_provider_raybatch.job.input.text_index import CELL_ROWS, LongRowError, index
from airflow_provider_raybatch.storage.checksum import checked_footer
from airflow_provider_raybatch.storage.errors import error_prefix

_THREADS = 16
_SMALL_FILE = 4 * 1024 * 1024
_SMALL_CELL = 8
CHUNK_BYTES = 64 * 1024 * 1024
"""Bytes of a chunk, unless a single row or index cell has more: long rows make chunks of few rows."""
_BOM = b"\xef\xbb\xbf"
ROWS_PER_CHUNK = 4096
"""Size of a chunk that is only read, without requests to an engine."""


@dataclass(frozen=True)
class Chunk:
    """A run of rows of one file.

    :param file: position in the listing.
    :param ordinal: position of its first row in the whole input.
    :param rows: how many rows.
    :param group: Parquet row group, -1 for text.
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
    """Result of one pass over all files.

    :param pieces: per file: Parquet row groups or index cells, still without ordinals.
    :param schemas: columns of each file; for JSONL unknown until rows are read.
    """

    pieces: tuple[tuple[Chunk, ...], ...]
    schemas: tuple[pa.Schema | None, ...]

    @property
    def rows(self) -> int:
        """Rows of the whole input."""
        return sum(piece.rows for pieces in self.pieces for piece in pieces)


@dataclass(frozen=True)
class Source:
    """The frozen input, found by preflight and used by all later steps.

    :param columns: names of the input columns, in order; for JSONL those of the first rows.
    :param schema: Arrow types, as far as the source or its first rows show them.
    :param rows: rows of the input, `limit` applied.
    """

    listing: Listing
    surveyed: Surveyed
    columns: list[str]
    schema: pa.Schema
    rows: int

    def chunks(self, rows_per_chunk: int) -> list[Chunk]:
        """The input, cut; always the same rows whatever the size."""
        return cut(self.surveyed, rows_per_chunk, self.rows)


def survey(listing: Listing, credentials: AwsCredentials | None) -> Surveyed:
    """Read every file once: Parquet footers, or one pass over the text.

    :raises PreflightError: a file is not what its format says.
    :raises StorageError: a file can't be read.
    """

    def look(numbered: tuple[int, SourceFile]) -> tuple[list[Chunk], pa.Schema | None]:
        number, file = numbered
        if listing.format == "parquet":
            return _look_parquet(number, file, credentials)
        return _look_text(number, file, listing.format == "csv", credentials)

    with error_prefix("source"), ThreadPoolExecutor(_THREADS) as pool:
        looks = list(pool.map(look, enumerate(listing.files)))
    return Surveyed(tuple(tuple(look[0]) for look in looks), tuple(look[1] for look in looks))


def cut(surveyed: Surveyed, rows_per_chunk: int, limit: int | None) -> list[Chunk]:
    """Chunks of about `rows_per_chunk` rows, at most `limit` rows in all, with their ordinals.

    Text is cut at index cells, so its chunks are whole multiples of a cell; Parquet is cut exactly.
    """
    chunks: list[Chunk] = []
    ordinal = 0
    for pieces in surveyed.pieces:
        for piece in _join(pieces, rows_per_chunk):
            for part in _split(piece, rows_per_chunk):
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


def _join(pieces: Sequence[Chunk], rows_per_chunk: int) -> list[Chunk]:
    """Neighbouring cells of a text file, up to the wanted size; row groups stay apart."""
    joined: list[Chunk] = []
    for piece in pieces:
        if (
            joined
            and piece.group < 0
            and joined[-1].rows + piece.rows <= rows_per_chunk
            and piece.stop - joined[-1].start <= CHUNK_BYTES
        ):
            joined[-1] = replace(joined[-1], rows=joined[-1].rows + piece.rows, stop=piece.stop)
        else:
            joined.append(piece)
    return joined


def _split(piece: Chunk, rows_per_chunk: int) -> Iterable[Chunk]:
    if piece.group < 0:
        yield piece
        return
    for start in range(piece.start, piece.stop, rows_per_chunk):
        stop = min(start + rows_per_chunk, piece.stop)
        yield replace(piece, start=start, stop=stop, rows=stop - start)


def _look_parquet(
    number: int, file: SourceFile, credentials: AwsCredentials | None
) -> tuple[list[Chunk], pa.Schema]:
    with open_file(file, credentials) as stream:
        try:
            parquet = pq.ParquetFile(
                stream, metadata=pq.read_metadata(pa.BufferReader(checked_footer(stream, needed=False)))
            )
        except (pa.ArrowInvalid, OSError) as error:
            why = (str(error).strip().splitlines() or ["unknown reason"])[0][:200]
            raise PreflightError(
                f"source: {file.shown} is not a readable Parquet file ({why}); write it again."
            ) from error
        meta = parquet.metadata
        pieces = [
            piece
            for group in range(meta.num_row_groups)
            for piece in _split(_group(number, group, meta.row_group(group)), rows_of_bytes(meta, group))
        ]
        schema = plain_schema(parquet.schema_arrow)
    check_names(schema.names, file.uri)
    return pieces, schema


def _group(number: int, group: int, meta: pq.RowGroupMetaData) -> Chunk:
    return Chunk(number, 0, meta.num_rows, group, 0, meta.num_rows)


def rows_of_bytes(meta: pq.FileMetaData, group: int) -> int:
    """Rows of a row group that :data:`CHUNK_BYTES` hold, if all are of one size; at least 1."""
    found = meta.row_group(group)
    return max(1, int(CHUNK_BYTES * found.num_rows / max(1, found.total_byte_size)))


def _look_text(
    number: int, file: SourceFile, is_csv: bool, credentials: AwsCredentials | None
) -> tuple[list[Chunk], pa.Schema | None]:
    # A small file may have to feed several replicas; a large one's index must not fill the memory.
    cell_rows = _SMALL_CELL if file.size < _SMALL_FILE else CELL_ROWS
    with open_file(file, credentials) as stream:
        columns, start = text_start(file, stream, is_csv)
        try:
            cells = list(index(stream, quoted=is_csv, start=start, cell_rows=cell_rows))
        except LongRowError as error:
            why = "is a quote never closed?" if is_csv else "JSONL has one object a line."
            raise PreflightError(
                f"source: {file.shown} is not {'CSV' if is_csv else 'JSONL'}, {error}; {why}"
            ) from error
        except csv_records.OpenQuoteError as error:
            line = csv_records.line_of_open_quote(stream, error.offset)
            raise PreflightError(
                f"source: {file.shown} ends inside a quoted field that begins in line {line}; close the "
                "quote there, or write the file again if it was cut off."
            ) from error
    pieces = [Chunk(number, 0, cell.rows, -1, cell.start, cell.stop) for cell in cells]
    return pieces, pa.schema([(name, pa.string()) for name in columns]) if is_csv else None


def text_start(file: SourceFile, stream: BinaryIO, is_csv: bool) -> tuple[tuple[str, ...], int]:
    """Columns of a CSV file (none of JSONL), and the byte where the rows begin.

    :raises PreflightError: the header is not CSV.
    """
    start = len(_BOM) if stream.read(len(_BOM)) == _BOM else 0
    return csv_records.header(stream, start, file.uri) if is_csv else ((), start)
