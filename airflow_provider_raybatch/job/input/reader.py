# SPDX-License-Identifier: Apache-2.0
"""Read one chunk: its rows for the prompt, and its columns for the dataset."""

from __future__ import annotations

import io
import json
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, BinaryIO, TypeAlias, cast

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_provider_raybatch.contract.failures import FailureClass
from airflow_provider_raybatch.contract.secrets import AwsCredentials
from airflow_provider_raybatch.job.input import csv_records
from airflow_provider_raybatch.job.input.listing import Listing, SourceFile
from airflow_provider_raybatch.job.input.opening import changed, open_file
from airflow_provider_raybatch.job.input.partitions import Partition, partitions
from airflow_provider_raybatch.job.input.plain_types import as_plain, decoded_bytes
from airflow_provider_raybatch.job.input.survey import Chunk, rows_of_bytes, text_start
from airflow_provider_raybatch.job.input.table import table_of
from airflow_provider_raybatch.job.input.text_index import is_blank
from airflow_provider_raybatch.storage.errors import StorageError
from airflow_provider_raybatch.storage.ranged_file import RangedFile

_LONGEST_SHOWN = 2000
_FEW = 16
"""If fewer than one row in this many is wanted, reading the rows one by one is faster."""
_SMALL_FILE = 1024 * 1024
"""Bytes of a Parquet file that is read by one request, whole, and kept for its other row groups."""
_KNOWN_FILES = 8
"""Whose footer is kept: several chunks are read at the same time."""
_HEADER_BYTES = 64 * 1024
_PORTION_BYTES = 256 * 1024 * 1024
"""Bytes of the rows that are written as one part. A column of text may have 2 GiB in Arrow."""


@dataclass(frozen=True)
class BadRow:
    """A row that could not be read. `text` is its raw text, cut."""

    reason: str
    text: str


Content: TypeAlias = pa.Table | Sequence[dict[str, Any] | BadRow]
"""What is read of a chunk at once: its columns, where the source has them as Arrow, else its rows."""


class ChunkRows:
    """Rows of one file, of a chunk or some of it.

    :param rows: for the prompt: a ``dict`` each, or what is wrong with it.
    :param table: the columns, where the source has them as Arrow, in any types; else made of `rows`.
    :param partition: columns that the file's folders name; they replace those of the file.
    :param shown: those of them that the prompt needs.
    """

    def __init__(
        self,
        rows: Sequence[dict[str, Any] | BadRow],
        table: pa.Table | None = None,
        partition: Partition | None = None,
        shown: Mapping[str, Any] | None = None,
    ) -> None:
        self.rows = [{**row, **shown} if isinstance(row, dict) else row for row in rows] if shown else rows
        self.from_file = rows
        self.table = table
        self.partition = partition or {}

    def __len__(self) -> int:
        return len(self.rows)

    def columns(self) -> pa.Table:
        """All input columns, a row each; bad rows are null throughout."""
        return self._complete(as_plain(self._columns_of_file()), len(self))

    def _columns_of_file(self) -> pa.Table:
        if self.table is not None:
            return self.table.drop_columns([n for n in self.table.column_names if n in self.partition])
        rows = [row if isinstance(row, dict) else {} for row in self.from_file]
        if self.partition:
            rows = [{n: value for n, value in row.items() if n not in self.partition} for row in rows]
        return table_of(rows)

    def _complete(self, columns: pa.Table, rows: int) -> pa.Table:
        """`columns` of the file, with those of the partition."""
        for name, value in self.partition.items():
            columns = columns.append_column(name, pa.repeat(value, rows))
        return columns

    def portions(self, positions: Sequence[int]) -> Iterator[tuple[Sequence[int], pa.Table]]:
        """The columns of some rows, in pieces that fit one part each.

        :param positions: ascending, at least one.
        """
        columns = self._columns_of_file()

        def portion(chosen: Sequence[int]) -> Iterator[tuple[Sequence[int], pa.Table]]:
            span = columns.slice(chosen[0], chosen[-1] + 1 - chosen[0])
            if len(chosen) > 1 and decoded_bytes(span) > _PORTION_BYTES:
                middle = len(chosen) // 2
                yield from portion(chosen[:middle])
                yield from portion(chosen[middle:])
            else:
                places = pa.array([place - chosen[0] for place in chosen], pa.int64())
                yield chosen, self._complete(as_plain(span).take(places), len(chosen))

        return portion(positions)


def portions(chosen: Sequence[tuple[ChunkRows, int]]) -> Iterator[tuple[list[int], pa.Table]]:
    """The columns of some rows of many chunks, in as few tables as types and memory allow.

    :param chosen: rows, each with its place in it; of the same `ChunkRows` one after the other.
    :returns: places in `chosen`, and the table of these; one part each.
    """
    pending: tuple[list[int], list[pa.Table]] = [], []
    size = 0
    for numbers, table in _tables(chosen):
        bytes_ = decoded_bytes(table)
        fits = not pending[1] or (
            size + bytes_ <= _PORTION_BYTES and table.schema.equals(pending[1][0].schema, check_metadata=True)
        )
        if not fits:
            yield pending[0], pa.concat_tables(pending[1])
            pending, size = ([], []), 0
        pending[0].extend(numbers)
        pending[1].append(table)
        size += bytes_
    if pending[1]:
        yield pending[0], pa.concat_tables(pending[1])


def _tables(chosen: Sequence[tuple[ChunkRows, int]]) -> Iterator[tuple[list[int], pa.Table]]:
    """As :func:`portions`, a table for each file or partition."""
    text: dict[Any, list[int]] = {}
    arrow: dict[int, list[int]] = {}
    for number, (rows, _) in enumerate(chosen):
        # One table of all rows of text: alone, each chunk's would have types of its own.
        if rows.table is None:
            text.setdefault(tuple(rows.partition.items()), []).append(number)
        else:
            arrow.setdefault(id(rows), []).append(number)
    for numbers in text.values():
        found = [chosen[number] for number in numbers]
        joined = ChunkRows([rows.from_file[place] for rows, place in found], None, found[0][0].partition)
        for places, table in joined.portions(range(len(found))):
            yield [numbers[place] for place in places], table
    for numbers in arrow.values():
        rows = chosen[numbers[0]][0]
        by_place = {chosen[number][1]: number for number in numbers}
        for places, table in rows.portions(sorted(by_place)):
            yield [by_place[place] for place in places], table


class Reader:
    """Reads chunks of one listing, and nothing else of a file but its footer or header.

    Thread-safe; keeps the last Parquet row group it decoded, and a few files' footers.

    :param columns: columns that the prompt needs as Python values, ``None`` for all (a user's function may
        read any).
    :param whole: whether `ChunkRows.columns` must have all columns of a Parquet file; else the others are
        not even decoded.
    """

    def __init__(
        self,
        listing: Listing,
        columns: Sequence[str] | None,
        credentials: AwsCredentials | None,
        whole: bool = True,
    ) -> None:
        self._listing = listing
        self._columns = columns
        self._credentials = credentials
        self._decoded = None if whole or columns is None else list(columns)
        self._lock = threading.Lock()
        self._group: tuple[tuple[int, int], pa.Table] | None = None
        self._known: dict[int, tuple[BinaryIO, pq.FileMetaData]] = {}
        self._headers: dict[int, tuple[str, ...]] = {}
        self._partitions = partitions(listing)

    def read(self, chunk: Chunk) -> ChunkRows:
        """The rows of `chunk`.

        :raises StorageError: the file can't be read, is damaged, or has changed.
        """
        content = self.content(chunk)
        if isinstance(content, pa.Table):
            return self._rows_of(chunk.file, content)
        return self._text(chunk, content)

    def content(self, chunk: Chunk) -> Content:
        """What `chunk` has, before Python values are made of it.

        :raises StorageError: see :meth:`read`.
        """
        file = self._listing.files[chunk.file]
        if self._listing.format == "parquet":
            table = self._row_group(file, chunk).slice(chunk.start, chunk.rows)
            if table.num_rows < chunk.rows:
                raise changed(file)
            return table
        with open_file(file, self._credentials, False) as stream:
            stream.seek(chunk.start)
            data = stream.read(chunk.stop - chunk.start)
            header = self._header(chunk.file, stream) if self._listing.format == "csv" else ()
        rows = _csv_rows(data, header) if self._listing.format == "csv" else _json_rows(data)
        if len(rows) < chunk.rows:
            raise changed(file)
        return rows[: chunk.rows]  # more than that only where `limit` cuts

    def rows(self, chunk: Chunk, content: Content, positions: Sequence[int]) -> ChunkRows:
        """Some rows of `chunk`; of the others, no Python values are made.

        :param content: what :meth:`content` gave.
        :param positions: in the chunk, in any order.
        """
        if isinstance(content, pa.Table):
            # Slices, since Arrow can't take rows of every type.
            return self._rows_of(
                chunk.file, pa.concat_tables(content.slice(first, count) for first, count in _runs(positions))
            )
        return self._text(chunk, [content[position] for position in positions])

    def _text(self, chunk: Chunk, rows: Sequence[dict[str, Any] | BadRow]) -> ChunkRows:
        return ChunkRows(rows, None, self._partitions[chunk.file], self._shown(chunk.file))

    def pick(self, chunk: Chunk, positions: Sequence[int]) -> Sequence[dict[str, Any] | BadRow]:
        """Some rows of `chunk` for the prompt; the others are not even made where few are wanted.

        :param positions: in the chunk, ascending.
        :raises StorageError: see :meth:`read`.
        """
        if len(positions) == chunk.rows:
            return self.read(chunk).rows
        if self._listing.format != "parquet" or _FEW * len(positions) > chunk.rows:
            rows = self.read(chunk).rows
            return [rows[position] for position in positions]
        return [
            row
            for position in positions
            for row in self.read(replace(chunk, start=chunk.start + position, rows=1)).rows
        ]

    def _shown(self, file: int) -> dict[str, Any]:
        """The values of the partition that the prompt needs."""
        return {
            name: value.as_py()
            for name, value in self._partitions[file].items()
            if self._columns is None or name in self._columns
        }

    def _of_file(self, file: int, columns: Sequence[str] | None) -> list[str] | None:
        """Those of `columns` that the file has itself."""
        return None if columns is None else [name for name in columns if name not in self._partitions[file]]

    def _rows_of(self, file: int, table: pa.Table) -> ChunkRows:
        """The rows of a table of a Parquet file."""
        wanted = self._of_file(file, self._columns)
        needed = table if wanted is None else table.select(wanted)
        rows = _parquet_rows(needed) if needed.num_columns else [{} for _ in range(table.num_rows)]
        if any(isinstance(row, BadRow) for row in rows):
            readable = [place if isinstance(row, dict) else None for place, row in enumerate(rows)]
            table = as_plain(table).take(pa.array(readable, pa.int64()))
        return ChunkRows(rows, table, self._partitions[file], self._shown(file))

    def _row_group(self, file: SourceFile, chunk: Chunk) -> pa.Table:
        """A decoded row group.

        Chunks of one group come in sequence, so the last one is nearly always the right one.
        """
        key = (chunk.file, chunk.group)
        with self._lock:
            if self._group is not None and self._group[0] == key:
                return self._group[1]
            try:
                columns = self._of_file(chunk.file, self._decoded)
                table = _decoded(self._parquet(chunk.file), chunk.group, columns)
            except MemoryError:  # Arrow's own is an Arrow error, too
                raise
            except IndexError as error:
                raise changed(file) from error
            except (pa.ArrowException, OSError) as error:
                if isinstance(error, OSError) and error.errno is not None:
                    raise StorageError(f"source: {file.uri} can't be read ({error}).") from error
                raise self._damaged(file, chunk.group, error) from error
            # However large it is: the chunks in work are slices of it, and would each keep a copy.
            self._group = (key, table)
            return table

    def _parquet(self, number: int) -> pq.ParquetFile:
        """A file whose columns are read together, by few requests, and whose footer is read once."""
        stream = open_file(self._listing.files[number], self._credentials, False)  # tells whether it changed
        known = None
        if number in self._known:
            stream.close()
            stream, known = self._known.pop(number)
        elif isinstance(stream, RangedFile) and self._listing.files[number].size <= _SMALL_FILE:
            stream.load()
        # Checksums, which few files have, cost little.
        parquet = pq.ParquetFile(stream, metadata=known, pre_buffer=True, page_checksum_verification=True)
        self._known[number] = stream, parquet.metadata
        if len(self._known) > _KNOWN_FILES:
            self._known.pop(next(iter(self._known)))
        return parquet

    def _damaged(self, file: SourceFile, group: int, error: Exception) -> StorageError:
        """The error of a row group that can't be decoded, with the first column of which this is true."""
        with open_file(file, self._credentials) as stream:
            parquet = pq.ParquetFile(stream, page_checksum_verification=True)
            for name in parquet.schema_arrow.names:
                try:
                    _decoded(parquet, group, [name])
                except (pa.ArrowException, OSError):
                    where = f"column {name!r} of row group {group}"
                    break
            else:
                where = f"row group {group}"
        reason = " ".join(str(error).split())[:200].rstrip(".")
        return StorageError(
            f"source: {file.uri} is damaged, {where} can't be decoded ({reason}); write the file again.",
            FailureClass.USER_ERROR,
        )

    def _header(self, number: int, stream: BinaryIO) -> tuple[str, ...]:
        if number not in self._headers:
            stream.seek(0)
            buffered = io.BufferedReader(cast(io.RawIOBase, stream), _HEADER_BYTES)
            self._headers[number], _ = text_start(self._listing.files[number], buffered, True)
            buffered.detach()
        return self._headers[number]


def _runs(positions: Sequence[int]) -> Iterator[tuple[int, int]]:
    """First position and length of each run of positions that follow each other."""
    first = 0
    for place in range(1, len(positions) + 1):
        if place == len(positions) or positions[place] != positions[place - 1] + 1:
            yield positions[first], place - first
            first = place


def _decoded(parquet: pq.ParquetFile, group: int, columns: Sequence[str] | None) -> pa.Table:
    """A row group, in batches that Arrow's columns hold."""
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
        return pa.Table.from_batches(found, None if found else _read_schema(parquet, columns))


def _read_schema(parquet: pq.ParquetFile, columns: Sequence[str] | None) -> pa.Schema:
    schema = parquet.schema_arrow
    return schema if columns is None else pa.schema([schema.field(name) for name in columns])


def _parquet_rows(table: pa.Table) -> Sequence[dict[str, Any] | BadRow]:
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


def _json_rows(data: bytes) -> list[dict[str, Any] | BadRow]:
    return [_json_row(line) for line in io.BytesIO(data) if not is_blank(line)]


def _json_row(line: bytes) -> dict[str, Any] | BadRow:
    try:
        # Bytes it would decode itself, surrogates included.
        value = _DECODER.decode(line.decode("utf-8-sig"))
        if b"\\u" in line:
            json.dumps(value, ensure_ascii=False).encode()  # half of a surrogate pair is not text
    except _DoubleKeyError as error:
        return BadRow(f"an object in the line has the key {str(error)!r} twice", _shown(line))
    except (ValueError, RecursionError) as error:
        return BadRow(f"the line is not JSON ({error})", _shown(line))
    if isinstance(value, dict):
        return value
    return BadRow(f"the line is JSON, but {type(value).__name__} instead of an object", _shown(line))


class _DoubleKeyError(Exception):
    """An object has a key twice, of which JSON's reader would keep the last value in silence."""


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise _DoubleKeyError(Counter(name for name, _ in pairs).most_common(1)[0][0])
    return found


_DECODER = json.JSONDecoder(object_pairs_hook=_object)


def _csv_rows(data: bytes, header: tuple[str, ...]) -> list[dict[str, Any] | BadRow]:
    """CSV has no types, so every value stays text: a leading zero is data."""
    rows: list[dict[str, Any] | BadRow] = []
    try:
        text, damaged = data.decode("utf-8"), False
    except UnicodeDecodeError:
        text, damaged = data.decode("utf-8", "surrogateescape"), True
    for fields in csv_records.records(text):
        if isinstance(fields, csv_records.BadRecord):
            rows.append(BadRow(f"the row is not CSV ({fields.reason})", fields.text[:_LONGEST_SHOWN]))
        elif len(fields) != len(header):
            rows.append(
                BadRow(f"the row has {len(fields)} fields, the header has {len(header)}", _shown(fields))
            )
        elif damaged and any("\udc80" <= character <= "\udcff" for value in fields for character in value):
            rows.append(BadRow("the row is not UTF-8 text", _shown(fields)))
        else:
            rows.append(dict(zip(header, fields, strict=True)))
    return rows


def _shown(raw: bytes | list[str]) -> str:
    text = raw.decode("utf-8", "replace") if isinstance(raw, bytes) else ",".join(raw)
    return text.encode("utf-8", "replace").decode("utf-8")[:_LONGEST_SHOWN]
