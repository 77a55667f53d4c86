# SPDX-License-Identifier: Apache-2.0
"""Reads a chunk: its rows for the prompt, and its columns for the dataset."""

from __future__ import annotations

import io
import threading
from collections.abc import Collection, Iterator, Sequence
from typing import Any, BinaryIO, TypeAlias, cast

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_provider_raybatch.contract.arguments.openai_batch import OPENAI_BATCH
from airflow_provider_raybatch.contract.failures import FailureClass
from airflow_provider_raybatch.contract.secrets import AwsCredentials
from airflow_provider_raybatch.job.input.arrow_batches import ArrowFileError, read_batch, read_schema
from airflow_provider_raybatch.job.input.chunk_rows import BadRow, ChunkRows, partitions
from airflow_provider_raybatch.job.input.listing import Listing, SourceFile
from airflow_provider_raybatch.job.input.opening import SMALL_FILE, changed, open_file
from airflow_provider_raybatch.job.input.prompt_values import mark
from airflow_provider_raybatch.job.input.survey import Chunk, rows_of_bytes, text_start
from airflow_provider_raybatch.job.input.table import as_plain, without_views
from airflow_provider_raybatch.job.input.text_rows import batch_lines, columns_in, csv_rows, json_rows
from airflow_provider_raybatch.storage.errors import StorageError
from airflow_provider_raybatch.storage.file import RangedFile, checked_footer

_KNOWN_FILES = 8
"""Files whose footer is kept; several chunks are read at the same time."""
_HEADER_BYTES = 64 * 1024

Content: TypeAlias = pa.Table | Sequence[dict[str, Any] | BadRow]
"""What is read of a chunk at once: its columns, where the source has them as Arrow, else its rows."""


class Reader:
    """Reads chunks of one listing. Thread-safe; keeps the last decoded Parquet row group.

    :param columns: needed as Python values, ``None`` for all (a user's function may read any).
    :param whole: whether all columns of a Parquet or Arrow file are decoded, for :meth:`ChunkRows.columns`.
    :param texts: columns whose values become text in a prompt, see
        :mod:`~airflow_provider_raybatch.job.input.prompt_values`.
    """

    def __init__(
        self,
        listing: Listing,
        columns: Sequence[str] | None,
        credentials: AwsCredentials | None,
        whole: bool = True,
        texts: Collection[str] = (),
    ) -> None:
        self._listing = listing
        self._columns = columns
        self._credentials = credentials
        self._texts = frozenset(texts)
        self._decoded = None if whole or columns is None else list(columns)
        self._lock = threading.Lock()
        self._group: tuple[tuple[int, int], pa.Table] | None = None
        self._known: dict[int, tuple[BinaryIO, pq.FileMetaData]] = {}
        self._headers: dict[int, tuple[str, ...]] = {}
        self._schemas: dict[int, pa.Schema] = {}
        self._partitions = partitions(listing)

    def read(self, chunk: Chunk) -> ChunkRows:
        """All rows; see :meth:`content` for errors."""
        return self.rows(chunk, self.content(chunk), range(chunk.rows))

    def content(self, chunk: Chunk) -> Content:
        """What `chunk` has, before Python values are made of it.

        :raises StorageError: the file can't be read, is damaged, or has changed.
        """
        file = self._listing.files[chunk.file]
        if self._listing.has_groups:
            table = self._row_group(file, chunk).slice(chunk.start, chunk.rows)
            if table.num_rows < chunk.rows:
                raise changed(file)
            return table
        if self._listing.format == "csv":
            # One opening for both, since each is a request.
            with open_file(file, self._credentials, False) as stream:
                data, header = self._text_of(chunk, stream), self._header(chunk.file, stream)
            rows = csv_rows(data, header, file)
        else:
            data = self._text(chunk)
            rows = batch_lines(data) if self._listing.format == OPENAI_BATCH else json_rows(data)
        if len(rows) < chunk.rows:
            raise changed(file)
        return rows[: chunk.rows]  # more than that only where `limit` cuts

    def columns_in(self, chunk: Chunk, names: Collection[str]) -> set[str]:
        """Those of `names` that any row of a chunk of JSONL has; see :meth:`content` for errors."""
        return columns_in(self._text(chunk), names, chunk.rows)

    def _text(self, chunk: Chunk) -> bytes:
        with open_file(self._listing.files[chunk.file], self._credentials, False) as stream:
            return self._text_of(chunk, stream)

    @staticmethod
    def _text_of(chunk: Chunk, stream: BinaryIO) -> bytes:
        stream.seek(chunk.start)
        return stream.read(chunk.stop - chunk.start)

    def rows(self, chunk: Chunk, content: Content, positions: Sequence[int]) -> ChunkRows:
        """Rows of `chunk` as Python values.

        :param content: of the chunk.
        :param positions: in the chunk, in any order.
        """
        some = _some(content, positions)
        if isinstance(some, pa.Table):
            return self._rows_of(chunk.file, some, len(positions))
        return ChunkRows(some, None, self._partitions[chunk.file], self._shown(chunk.file))

    def _shown(self, file: int) -> dict[str, Any]:
        """Values of the partition that the prompt needs."""
        return {
            name: value.as_py()
            for name, value in self._partitions[file].items()
            if self._columns is None or name in self._columns
        }

    def _of_file(self, file: int, columns: Sequence[str] | None) -> list[str] | None:
        """Those of `columns` that are not the partition's."""
        return None if columns is None else [name for name in columns if name not in self._partitions[file]]

    def _rows_of(self, file: int, table: pa.Table, count: int) -> ChunkRows:
        """The rows of a table of a file; one without columns does not know how many it had."""
        wanted = self._of_file(file, self._columns)
        needed = table if wanted is None else table.select(wanted)
        rows = parquet_rows(needed) if needed.num_columns else [{} for _ in range(count)]
        mark(rows, needed.schema, self._texts)
        if any(isinstance(row, BadRow) for row in rows):
            readable = [place if isinstance(row, dict) else None for place, row in enumerate(rows)]
            table = as_plain(table).take(pa.array(readable, pa.int64()))
        return ChunkRows(rows, table, self._partitions[file], self._shown(file))

    def _row_group(self, file: SourceFile, chunk: Chunk) -> pa.Table:
        """A decoded row group or batch. Chunks of one come in sequence, so the last one is kept."""
        key = (chunk.file, chunk.group)
        with self._lock:
            if self._group is not None and self._group[0] == key:
                return self._group[1]
            try:
                columns = self._of_file(chunk.file, self._decoded)
                if self._listing.format == "arrow":
                    table = self._batch(chunk.file, chunk.group, columns)
                else:
                    table = _decoded(self._parquet(chunk.file), chunk.group, columns)
            except MemoryError:  # Arrow's own is an Arrow error, too
                raise
            except (IndexError, ArrowFileError) as error:
                raise changed(file) from error
            except (pa.ArrowException, OSError) as error:
                if isinstance(error, OSError) and error.errno is not None:
                    raise StorageError(f"source: {file.shown} can't be read ({error}).") from error
                raise self._damaged(file, chunk.group, error) from error
            # However large: the chunks in work are slices of it.
            self._group = (key, table)
            return table

    def _batch(self, number: int, at: int, columns: Sequence[str] | None) -> pa.Table:
        with open_file(self._listing.files[number], self._credentials, False) as stream:
            if number not in self._schemas:
                self._schemas[number] = read_schema(stream)
            table = pa.Table.from_batches([read_batch(stream, at, self._schemas[number])])
        return without_views(table if columns is None else table.select(columns))

    def _parquet(self, number: int) -> pq.ParquetFile:
        """A file whose footer is read once, and whose columns are read together, by few requests."""
        stream = open_file(self._listing.files[number], self._credentials, False)  # tells whether it changed
        known = None
        if number in self._known:
            stream.close()
            stream, known = self._known.pop(number)
        elif isinstance(stream, RangedFile) and self._listing.files[number].size <= SMALL_FILE:
            stream.load()
        if known is None:
            known = pq.read_metadata(pa.BufferReader(checked_footer(stream, needed=False)))
        # Checksums, which few files have, cost little.
        parquet = pq.ParquetFile(stream, metadata=known, pre_buffer=True, page_checksum_verification=True)
        self._known[number] = stream, parquet.metadata
        if len(self._known) > _KNOWN_FILES:
            self._known.pop(next(iter(self._known)))
        return parquet

    def _damaged(self, file: SourceFile, group: int, error: Exception) -> StorageError:
        """The error of a row group, with its first column that can't be decoded, or of a batch."""
        where = f"the batch at byte {group:,}"
        if self._listing.format == "parquet":
            where = self._broken_column(file, group)
        reason = " ".join(str(error).split())[:200].rstrip(".")
        damaged, then = f"source: {file.shown} is damaged, {where} can't be decoded", "write the file again."
        return StorageError(
            f"{damaged} ({reason}); {then}", FailureClass.USER_ERROR, public=f"{damaged}; {then}"
        )

    def _broken_column(self, file: SourceFile, group: int) -> str:
        with open_file(file, self._credentials) as stream:
            parquet = pq.ParquetFile(stream, page_checksum_verification=True)
            for name in parquet.schema_arrow.names:
                try:
                    _decoded(parquet, group, [name])
                except (pa.ArrowException, OSError):
                    return f"column {name!r} of row group {group}"
        return f"row group {group}"

    def _header(self, number: int, stream: BinaryIO) -> tuple[str, ...]:
        if number not in self._headers:
            stream.seek(0)
            buffered = io.BufferedReader(cast(io.RawIOBase, stream), _HEADER_BYTES)
            self._headers[number], _ = text_start(self._listing.files[number], buffered, True)
            buffered.detach()
        return self._headers[number]


def picked(content: Content, positions: Sequence[int]) -> Content:
    """A copy of some rows; the others need not be kept in memory."""
    some = _some(content, positions)
    return some.combine_chunks() if isinstance(some, pa.Table) else some


def _some(content: Content, positions: Sequence[int]) -> Content:
    if not isinstance(content, pa.Table):
        return [content[position] for position in positions]
    # Slices, since Arrow can't take rows of every type.
    runs = [content.slice(first, count) for first, count in _runs(positions)]
    return pa.concat_tables(runs or [content.slice(0, 0)])


def _runs(positions: Sequence[int]) -> Iterator[tuple[int, int]]:
    """First position and length of each run of positions that follow each other."""
    first = 0
    for place in range(1, len(positions) + 1):
        if place == len(positions) or positions[place] != positions[place - 1] + 1:
            yield positions[first], place - first
            first = place


def _decoded(parquet: pq.ParquetFile, group: int, columns: Sequence[str] | None) -> pa.Table:
    """A row group, in batches that fit Arrow's columns."""
    rows = rows_of_bytes(parquet.metadata, group)
    while True:
        batches = parquet.iter_batches(rows, row_groups=[group], columns=columns)
        try:
            found = list(batches)
        except (pa.ArrowNotImplementedError, pa.ArrowCapacityError):
            # Rows that repeat themselves take far more than the file says, and nested text has one chunk.
            if rows == 1:
                raise
            rows = max(1, rows // 8)
            continue
        table = pa.Table.from_batches(found) if found else parquet.read_row_group(group, columns)
        return without_views(table)


def parquet_rows(table: pa.Table) -> Sequence[dict[str, Any] | BadRow]:
    """The rows as Python values; those that Python can't hold are bad ones."""
    try:
        return table.to_pylist()  # type: ignore[no-any-return]
    except Exception:  # invalid UTF-8, a date after year 9999, an unknown time zone
        return [_parquet_row(table, place) for place in range(table.num_rows)]


def _parquet_row(table: pa.Table, place: int) -> dict[str, Any] | BadRow:
    row = {}
    for name, column in zip(table.column_names, table.columns, strict=True):
        try:
            row[name] = column[place].as_py()
        except Exception as error:  # see above
            return BadRow(f"column {name!r} has a value that can't be read ({error})", "")
    return row
