# SPDX-License-Identifier: Apache-2.0
"""The same rows in every format, and the rows that a listing gives."""

from __future__ import annotations

import csv
import gzip
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_provider_raybatch.contract.arguments.data import InputArguments
from airflow_provider_raybatch.job.input.chunk_rows import BadRow
from airflow_provider_raybatch.job.input.listing import Listing, resolve
from airflow_provider_raybatch.job.input.reader import Reader
from airflow_provider_raybatch.job.input.survey import Chunk, cut, survey
from airflow_provider_raybatch.storage.folder import Folder
from airflow_provider_raybatch.storage.s3_folder import S3Folder

ROWS = [
    {"id": number, "text": f'line one\nline, "two" ü {number}', "score": number / 7 if number % 3 else None}
    for number in range(500)
]


def as_jsonl(rows: Sequence[dict[str, Any]]) -> bytes:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()


def as_csv(rows: Sequence[dict[str, Any]]) -> bytes:
    out = io.StringIO(newline="")
    writer = csv.DictWriter(out, list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue().encode()


def as_parquet(rows: Sequence[dict[str, Any]]) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(list(rows)), sink, row_group_size=70)
    return bytes(sink.getvalue())


def as_arrow(rows: Sequence[dict[str, Any]], is_file: bool = False) -> bytes:
    """Return a stream, as Hugging Face ``datasets`` writes it, or a file (Feather)."""
    table, sink = pa.Table.from_pylist(list(rows)), pa.BufferOutputStream()
    opened = pa.ipc.new_file if is_file else pa.ipc.new_stream
    with opened(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=70)
    return bytes(sink.getvalue())


def packed(content: bytes, how: str) -> bytes:
    if how == "gz":
        return gzip.compress(content)
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(content)
    return bytes(sink.getvalue())


WRITERS = {"jsonl": as_jsonl, "csv": as_csv, "parquet": as_parquet, "arrow": as_arrow}


def text_of(row: dict[str, Any]) -> dict[str, str]:
    """Return a value in the form that CSV has."""
    return {name: "" if value is None else str(value) for name, value in row.items()}


def read_all(
    listing: Listing,
    rows_per_chunk: int = 128,
    limit: int | None = None,
    columns: Sequence[str] | None = None,
    credentials: Any = None,
) -> tuple[list[Chunk], list[dict[str, Any] | BadRow], list[dict[str, Any]]]:
    """Return chunks, rows and columns of a whole listing; the last chunk is read first."""
    found = cut(survey(listing, credentials), rows_per_chunk, limit)
    reader = Reader(listing, columns, credentials)
    read = {chunk.ordinal: reader.read(chunk) for chunk in reversed(found)}
    rows = [row for chunk in found for row in read[chunk.ordinal].rows]
    table = [row for chunk in found for row in read[chunk.ordinal].columns().to_pylist()]
    assert all(len(read[chunk.ordinal]) == chunk.rows for chunk in found)
    return found, rows, table


def names_of(folder: Folder, *paths: str, **fields: Any) -> list[str]:
    """Return the names of the files that paths below a folder mean as a source."""
    credentials = folder.credentials if isinstance(folder, S3Folder) else None
    source = [f"{folder.uri}/{path}" if path else folder.uri for path in paths]
    files = resolve(InputArguments(source=source, **fields), credentials).files
    return [file.uri[len(folder.uri) + 1 :] for file in files]


def listing_of(path: Path | str, **fields: Any) -> Listing:
    return resolve(InputArguments(source=[str(path)], **fields), None)
