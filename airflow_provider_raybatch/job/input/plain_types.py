# SPDX-License-Identifier: Apache-2.0
"""Arrow types that all later steps handle, without dictionaries and views.

Dictionaries differ between row groups, and Arrow's `take` knows no views.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

_REFUSED = (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, pa.ArrowIndexError)


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
