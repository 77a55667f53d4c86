# SPDX-License-Identifier: Apache-2.0
"""Raw documents out of JSON lines and Parquet, where a broken row is a row with a reason and not the end."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_provider_raybatch.workflows.errors import WorkflowError
from airflow_provider_raybatch.workflows.places import place
from airflow_provider_raybatch.workflows.sift import Checked, Drop, text_column, with_column

_BATCH_ROWS = 2048
_BATCH_BYTES = 16 * 1024 * 1024
LONGEST_LINE = 64 * 1024 * 1024
"""Bytes. A longer line is a broken row, and its rest is passed over."""


def read_raw(
    sources: Sequence[str], columns: Sequence[str], aws_conn_id: str | None = None
) -> Iterator[pa.RecordBatch]:
    """Documents with these columns as text, and `source`, `line` and `broken`.

    :param sources: files or folders, local or ``s3://``; ``*.jsonl`` and ``*.parquet`` are read, other files
        are left out.
    :param columns: to read; a value that is no text becomes its JSON, a missing one is null.
    :param aws_conn_id: connection of type ``aws`` for ``s3://``; by default the worker's own identity.
    :returns: batches; `source` is the file, `line` counts its rows from 1, `broken` says what is wrong with
        the row, else null. The first batch is empty.
    :raises WorkflowError: there is no such file, or a Parquet file lacks a column or can't be read.
    """
    schema = pa.schema([
        *((name, pa.string()) for name in columns),
        ("source", pa.string()),
        ("line", pa.int64()),
        ("broken", pa.string()),
    ])
    if len(set(schema.names)) < len(schema.names):
        raise WorkflowError(
            "columns: 'source', 'line' and 'broken' are added, and each name may stand once; choose others."
        )
    yield pa.RecordBatch.from_pylist([], schema=schema)
    for source in sources:
        parent, _, name = source.rstrip("/").rpartition("/")
        folder = place(parent or "/", aws_conn_id)
        found = [one for one in folder.list(name) if one.path.endswith((".jsonl", ".parquet"))]
        if not found:
            raise WorkflowError(
                f"sources: there is no .jsonl or .parquet file at {source!r}; correct the location, or leave "
                "the source out."
            )
        for entry in found:
            uri = f"{folder.uri}/{entry.path}"
            with folder.open(entry.path, entry.size) as stream:
                if entry.path.endswith(".jsonl"):
                    rows = _json_rows(stream, columns)
                else:
                    rows = _parquet_rows(stream, columns, uri)
                yield from _batches(rows, uri, schema)


class Unbroken:
    """Drops the rows that :func:`read_raw` could not read. Rule: ``broken_row``."""

    def __init__(self, name: str = "readable") -> None:
        self.name = name

    def __call__(self, batch: pa.RecordBatch) -> Checked:
        """See :class:`Step`."""
        broken = text_column(batch, "broken")
        return Checked(batch, [None if why is None else Drop("broken_row", why) for why in broken])


class ApproximateTokens:
    """Adds a column with a quarter of the text's UTF-8 bytes: what tokens are about, without a tokenizer."""

    def __init__(self, column: str = "text", into: str = "approx_tokens", name: str = "count_tokens") -> None:
        self.name = name
        self._column, self._into = column, into

    def __call__(self, batch: pa.RecordBatch) -> Checked:
        """See :class:`Step`."""
        counts = [len((text or "").encode()) // 4 for text in text_column(batch, self._column)]
        return Checked(with_column(batch, self._into, pa.array(counts, pa.int64())), [None] * batch.num_rows)


def _json_rows(stream: BinaryIO, columns: Sequence[str]) -> Iterator[dict[str, Any]]:
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


def _parquet_rows(stream: BinaryIO, columns: Sequence[str], uri: str) -> Iterator[dict[str, Any]]:
    try:
        parquet = pq.ParquetFile(stream)
        if missing := [name for name in columns if name not in parquet.schema_arrow.names]:
            raise WorkflowError(
                f"columns: {missing[0]!r} is not in {uri}, which has {', '.join(parquet.schema_arrow.names)}."
            )
        for batch in parquet.iter_batches(256, columns=list(columns), use_threads=False):
            for row in batch.to_pylist():
                yield {name: _as_text(value) for name, value in row.items()}
    except (pa.ArrowInvalid, OSError) as error:
        raise WorkflowError(
            f"sources: {uri} can't be read as Parquet ({error}); remove it or write it again."
        ) from error


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
        waiting.append({**row, "source": uri, "line": line})
        size += sum(len(value) for value in row.values() if value)
        if len(waiting) == _BATCH_ROWS or size > _BATCH_BYTES:
            yield pa.RecordBatch.from_pylist(waiting, schema=schema)
            waiting, size = [], 0
    if waiting:
        yield pa.RecordBatch.from_pylist(waiting, schema=schema)
