# SPDX-License-Identifier: Apache-2.0
"""Read raw documents from JSON lines, CSV and Parquet; a broken row becomes a row with a reason."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_provider_raybatch.workflows.errors import WorkflowError
from airflow_provider_raybatch.workflows.places import files_at
from airflow_provider_raybatch.workflows.sift import Checked, Drop, text_column

_BATCH_ROWS = 2048
_BATCH_BYTES = 16 * 1024 * 1024
LONGEST_LINE = 64 * 1024 * 1024
"""Bytes. A longer line is a broken row, and the rest of it is skipped."""


def read_raw(
    sources: Sequence[str], columns: Sequence[str], aws_conn_id: str | None = None
) -> Iterator[pa.RecordBatch]:
    """Documents with these columns as text, and `source`, `line`, `origin` and `broken`.

    :param sources: files or folders, local or ``s3://``; ``*.jsonl``, ``*.csv`` (UTF-8, with a header) and
        ``*.parquet`` are read, other files are ignored.
    :param columns: to read; a value that is not text is written as JSON; a missing one is null.
    :returns: batches; `source` is the file, `line` the number of the row in it, from 1, `origin` both as one
        name, and `broken` the error of a broken row, else null. The first batch is empty.
    :raises WorkflowError: there is no such file, or a Parquet or CSV file lacks a column or can't be read.
    """
    schema = pa.schema([
        *((name, pa.string()) for name in columns),
        ("source", pa.string()),
        ("line", pa.int64()),
        ("origin", pa.string()),
        ("broken", pa.string()),
    ])
    if len(set(schema.names)) < len(schema.names):
        raise WorkflowError(
            "columns: 'source', 'line', 'origin' and 'broken' are added, and each name may stand once; "
            "choose others."
        )
    yield pa.RecordBatch.from_pylist([], schema=schema)
    for source in sources:
        folder, files = files_at(source, aws_conn_id, "sources")
        known = [(one, _READERS[kind]) for one in files if (kind := one.path.rpartition(".")[2]) in _READERS]
        if not known:
            raise WorkflowError(
                f"sources: there is no .jsonl, .csv or .parquet file at {source!r}; correct the location, or "
                "leave the source out."
            )
        for entry, read in known:
            uri = f"{folder.uri}/{entry.path}"
            with folder.open(entry.path, entry.size) as stream:
                yield from _batches(read(stream, columns, uri), uri, schema)


class Unbroken:
    """Drops the rows that :func:`read_raw` could not read. Rule: ``broken_row``."""

    def __init__(self, name: str = "readable") -> None:
        self.name = name

    def __call__(self, batch: pa.RecordBatch) -> Checked:
        """See :class:`SiftStep`."""
        broken = text_column(batch, "broken")
        return Checked(batch, [None if why is None else Drop("broken_row", why) for why in broken])


def _json_rows(stream: BinaryIO, columns: Sequence[str], _uri: str) -> Iterator[dict[str, Any]]:
    while line := stream.readline(LONGEST_LINE):
        if len(line) == LONGEST_LINE and not line.endswith(b"\n"):
            while (rest := stream.readline(LONGEST_LINE)) and not rest.endswith(b"\n"):
                pass
            yield {"broken": f"the line is longer than {LONGEST_LINE // 2**20} MiB"}
            continue
        if not line.strip():
            yield {}
            continue
        try:
            value = json.loads(line.decode())
            if not isinstance(value, dict):
                raise ValueError(f"it is a {type(value).__name__} and not an object")
            row = {name: _as_text(value.get(name)) for name in columns}
        except (ValueError, RecursionError) as error:
            yield {"broken": f"the line is not a JSON object ({str(error)[:120]})"}
            continue
        yield row


def _csv_rows(stream: BinaryIO, columns: Sequence[str], uri: str) -> Iterator[dict[str, Any]]:
    csv.field_size_limit(max(csv.field_size_limit(), LONGEST_LINE))
    # Bytes that are not UTF-8 become lone surrogates, which no valid text has.
    reader = csv.reader(io.TextIOWrapper(stream, "utf-8-sig", "surrogateescape", newline=""))
    header = next(reader, None)
    if header is None:
        return
    _require(columns, header, uri)
    while True:
        try:
            fields = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            yield {"broken": f"the row is not CSV ({error})"}
            continue
        if fields and len(fields) != len(header):
            count = f"{len(fields)} field{'s' if len(fields) > 1 else ''}"
            yield {"broken": f"the row has {count}, and the header has {len(header)}"}
            continue
        try:
            row = dict(zip(header, fields, strict=False))
            yield {name: _as_text(row[name]) for name in columns} if fields else {}
        except ValueError as error:
            yield {"broken": f"the row is not UTF-8 ({str(error)[:120]})"}


def _parquet_rows(stream: BinaryIO, columns: Sequence[str], uri: str) -> Iterator[dict[str, Any]]:
    try:
        parquet = pq.ParquetFile(stream, page_checksum_verification=True)
        _require(columns, parquet.schema_arrow.names, uri)
        for batch in parquet.iter_batches(256, columns=list(columns), use_threads=False):
            for row in batch.to_pylist():
                yield {name: _as_text(value) for name, value in row.items()}
    except (ValueError, OSError) as error:
        raise WorkflowError(
            f"sources: {uri} can't be read as Parquet ({error}); remove it or write it again."
        ) from error


_READERS = {"jsonl": _json_rows, "csv": _csv_rows, "parquet": _parquet_rows}


def _require(columns: Sequence[str], present: Sequence[str], uri: str) -> None:
    if missing := [name for name in columns if name not in present]:
        raise WorkflowError(
            f"columns: {missing[0]!r} is not in {uri}, which has {', '.join(present)}; correct the name."
        )


def _as_text(value: Any) -> str | None:
    if value is None:
        return None
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    text.encode()  # Half a surrogate pair is not a character; this raises a ValueError.
    return text


def _batches(rows: Iterator[dict[str, Any]], uri: str, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    waiting: list[dict[str, Any]] = []
    size = 0
    for line, row in enumerate(rows, 1):
        if not row:
            continue  # A blank line.
        waiting.append({**row, "source": uri, "line": line, "origin": f"{uri}:{line}"})
        size += sum(len(value) for value in row.values() if value)
        if len(waiting) == _BATCH_ROWS or size > _BATCH_BYTES:
            yield pa.RecordBatch.from_pylist(waiting, schema=schema)
            waiting, size = [], 0
    if waiting:
        yield pa.RecordBatch.from_pylist(waiting, schema=schema)
