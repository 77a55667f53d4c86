# SPDX-License-Identifier: Apache-2.0
"""Tables of Arrow: of rows of a source without types, and in types that all later steps handle.

A chunk does not know the values of the others. So a column without one scalar type is stored as JSON
text, and metadata of the table has each column's kind, from which publishing finds its type.
Plain types have neither dictionaries, which differ between row groups, nor views, which Arrow's `take` lacks.
"""

from __future__ import annotations

import base64
import io
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from airflow_provider_raybatch.contract.failures import PreflightError
from airflow_provider_raybatch.contract.row_template import prompt_text
from airflow_provider_raybatch.contract.text import count_of, shown_uri
from airflow_provider_raybatch.job.input.json_types import STRING, TEXT, Kind, arrow_type, kind_of
from airflow_provider_raybatch.storage.file import with_footer_checksum

KINDS = b"raybatch.kinds"
"""Key of the kinds of all columns, as JSON, in a schema's metadata."""

_ENCODE = json.JSONEncoder(ensure_ascii=False).encode
_REFUSED = (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, pa.ArrowIndexError)


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


def plain_schema(schema: pa.Schema) -> pa.Schema:
    """The same columns in plain types."""
    return pa.schema([column.with_type(plain_type(column.type)) for column in schema])


def plain_type(kind: pa.DataType) -> pa.DataType:
    """`kind` with each dictionary and view in it replaced by its values' type.

    Only a whole column of scalars stays an extension type: Arrow can't build them inside of others, nor make
    Python values of all tensors.
    """
    is_extension = isinstance(kind, pa.BaseExtensionType) and not pa.types.is_nested(kind.storage_type)
    return kind if is_extension and _inner(kind.storage_type).equals(kind.storage_type) else _inner(kind)


def _inner(kind: pa.DataType) -> pa.DataType:
    if isinstance(kind, pa.BaseExtensionType):
        return _inner(kind.storage_type)
    if pa.types.is_dictionary(kind):
        return _inner(kind.value_type)
    if pa.types.is_struct(kind):
        return pa.struct([_plain_field(field) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(_plain_field(kind.key_field), _plain_field(kind.item_field), kind.keys_sorted)
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(_plain_field(kind.value_field), kind.list_size)
    if pa.types.is_large_list(kind):
        return pa.large_list(_plain_field(kind.value_field))
    if pa.types.is_list(kind):
        return pa.list_(_plain_field(kind.value_field))
    return {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}.get(kind, kind)


def as_plain(table: pa.Table) -> pa.Table:
    """`table` in plain types; its columns may come in several chunks."""
    schema = plain_schema(table.schema)
    if table.schema.equals(schema):
        return table
    columns = [_converted(column, kind) for column, kind in zip(table.columns, schema.types, strict=True)]
    return pa.table(columns, schema=schema)


def without_views(table: pa.Table) -> pa.Table:
    """`table` with plain types in place of views, whose size pyarrow up to 21 can't tell."""
    for place, column in enumerate(table.schema):
        if "_view" in str(column.type):
            plain = column.with_type(plain_type(column.type))
            table = table.set_column(place, plain, _converted(table.column(place), plain.type))
    return table


def decoded_bytes(table: pa.Table) -> int:
    """Bytes of `table` in plain types, where each row has its own copy of a dictionary's value."""
    size = int(table.nbytes)
    for column in table.columns:
        if pa.types.is_dictionary(column.type):
            size += sum(_repeated_bytes(chunk) for chunk in column.chunks)
    return size


def _repeated_bytes(array: pa.DictionaryArray) -> int:
    try:
        lengths = pc.binary_length(array.dictionary)
    except pa.ArrowNotImplementedError:  # numbers, which are as small as their indices
        return 0
    return int(pc.sum(lengths.take(array.indices)).as_py() or 0)


def _plain_field(field: pa.Field) -> pa.Field:
    return field.with_type(_inner(field.type))


def _converted(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    if column.type.equals(kind):
        return column
    try:
        return pa.chunked_array([_plain(chunk, kind) for chunk in column.chunks], kind)
    except _REFUSED:
        # The values of a dictionary need more than 2 GiB, or Arrow has no such cast.
        if len(column) <= 1:
            return pa.chunked_array([pa.array(column.to_pylist(), kind)], kind)
        middle = len(column) // 2
        halves = (_converted(column.slice(0, middle), kind), _converted(column.slice(middle), kind))
        return pa.chunked_array([chunk for half in halves for chunk in half.chunks], kind)


def _plain(array: pa.Array, kind: pa.DataType) -> pa.Array:
    if isinstance(array, pa.DictionaryArray) and pa.types.is_nested(array.dictionary.type):
        array = array.dictionary.take(array.indices)  # Arrow has no such cast
    return (array.storage if isinstance(array.type, pa.BaseExtensionType) else array).cast(kind)
