# SPDX-License-Identifier: Apache-2.0
"""Rows of a source without types as Arrow.

A chunk does not know the values of the others. So a column without one scalar type is stored as JSON
text, and metadata of the table has each column's kind, from which publishing finds its type.
"""

from __future__ import annotations

import base64
import io
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_provider_raybatch.contract.failures import PreflightError
from airflow_provider_raybatch.contract.row_template import prompt_text
from airflow_provider_raybatch.contract.text import count_of, shown_uri
from airflow_provider_raybatch.job.input.json_types import STRING, TEXT, Kind, arrow_type, kind_of
from airflow_provider_raybatch.storage.file import with_footer_checksum

KINDS = b"raybatch.kinds"
"""Key of the kinds of all columns, as JSON, in a schema's metadata."""

_ENCODE = json.JSONEncoder(ensure_ascii=False).encode


def table_of(rows: Sequence[dict[str, Any]]) -> pa.Table:
    """A table of all columns of any row, in order of appearance; absent values are null."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    if not names:
        return pa.table({}).select([])
    columns, kinds = [], {}
    for name in names:
        values = [row.get(name) for row in rows]
        kinds[name] = kind_of(values)
        columns.append(_stored(values, kinds[name]))
    return pa.table(columns, names=names).replace_schema_metadata({KINDS: json.dumps(kinds)})


def kinds_of(schema: pa.Schema) -> dict[str, Kind]:
    """The kinds of the columns of :func:`table_of`; none of other tables."""
    found: dict[str, Kind] = json.loads((schema.metadata or {}).get(KINDS, b"{}"))
    return found


def restored(column: pa.Array, kind: Kind, wanted: pa.DataType) -> pa.Array:
    """A column of :func:`table_of` in the type that fits all chunks.

    :param kind: of this column.
    :param wanted: text, or the type of a kind that `kind` was joined to.
    """
    as_json = pa.types.is_string(column.type) and kind != STRING
    if not as_json and column.type.equals(wanted):
        return column
    if not as_json and not pa.types.is_string(wanted):
        return column.cast(wanted)
    values = column.to_pylist()
    if as_json:
        values = [None if value is None else json.loads(value) for value in values]
    return pa.array([as_text(value) for value in values] if pa.types.is_string(wanted) else values, wanted)


def as_text(value: Any) -> str | None:
    """Strings as they are, bytes in Base64, numbers and nested values as JSON, others as in prompts."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, (bool, int, float, list, tuple, dict)):
        return json.dumps(value, ensure_ascii=False, default=as_text)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return prompt_text(value)


def one_array(column: pa.ChunkedArray) -> pa.Array:
    """The column in one piece; Arrow leaves some types in chunks when it combines them."""
    combined = column.combine_chunks()
    return combined if isinstance(combined, pa.Array) else pa.concat_arrays(combined.chunks)


def members(column: pa.ChunkedArray) -> dict[str, pa.Array]:
    """All fields of a struct column, null where the struct is. Arrow's ``struct_field`` is slow for each."""
    fields = list(column.type)
    pieces = [chunk.flatten() for chunk in column.chunks]
    return {
        field.name: one_array(pa.chunked_array([piece[place] for piece in pieces], field.type))
        for place, field in enumerate(fields)
    }


def as_parquet(table: pa.Table, **options: Any) -> bytes:
    """A Parquet file of `table`, with checksums of its pages and of its footer.

    :param options: of pyarrow's ``write_table``.
    """
    buffer = io.BytesIO()
    pq.write_table(table, buffer, write_page_checksum=True, **options)
    return with_footer_checksum(buffer.getvalue())


def parquet_file(tables: Iterable[pa.Table], schema: pa.Schema) -> bytes:
    """A compressed Parquet file of tables, as of :func:`as_parquet`; a row group or more for each."""
    buffer = io.BytesIO()
    with pq.ParquetWriter(buffer, schema, compression="zstd", write_page_checksum=True) as writer:
        for table in tables:
            writer.write_table(table)
    return with_footer_checksum(buffer.getvalue())


def check_names(names: Sequence[str], uri: str) -> None:
    """:raises PreflightError: a column is there twice."""
    (name, times) = Counter(names).most_common(1)[0] if names else ("", 0)
    if times > 1:
        there, then = count_of(times, "time"), "rename all but one in the file."
        raise PreflightError(
            f"source: {shown_uri(uri)} has the column {name!r} {there}; {then}",
            public=f"source: {shown_uri(uri)} has a column {there}; {then}",  # perhaps of a row, not a header
        )


def _stored(values: Sequence[Any], kind: Kind) -> pa.Array:
    if isinstance(kind, str) and len(set(map(type, values)) - {type(None)}) <= 1 and kind != TEXT:
        return pa.array(values, arrow_type(kind))
    return pa.array([None if value is None else _ENCODE(value) for value in values], pa.string())
