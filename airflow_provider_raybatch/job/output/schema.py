# SPDX-License-Identifier: Apache-2.0
"""One type for each input column, although parts differ: numbers widen, what has no common type is text."""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_provider_raybatch.job.input.json_types import NULL, Kind, arrow_type, join
from airflow_provider_raybatch.job.input.table import as_text, kinds_of
from airflow_provider_raybatch.job.output.rows import row_values
from airflow_provider_raybatch.job.parts.part import Part, decoded_bytes, tokens_of
from airflow_provider_raybatch.job.parts.reading import read_part
from airflow_provider_raybatch.storage.file import in_order
from airflow_provider_raybatch.storage.folder import Folder

_LARGEST_EXACT = 2**53
"""Larger whole numbers have no exact double."""
_NANOSECOND_YEARS = (1678, 2261)
"""Years that a 64-bit count of nanoseconds reaches for sure."""


@dataclass(frozen=True)
class Footer:
    """What the footer of a part says.

    :param inputs: its input columns, if it has any.
    :param extreme: Parquet's paths of those of them that a wider type would not keep.
    :param decoded: see :func:`~airflow_provider_raybatch.job.parts.part.decoded_bytes`.
    :param kinds: of the input columns of a source without types.
    :param filled: tokens of its texts that were filled in instead of generated.
    :param paid: input and output tokens that its submission paid for.
    """

    inputs: pa.StructType | None
    extreme: frozenset[str]
    decoded: bytes
    kinds: dict[str, Kind] = field(default_factory=dict)
    filled: int = 0
    paid: int = 0


def footers(folder: Folder, parts: Sequence[Part]) -> list[Footer]:
    """The footers of `parts`, in their order.

    :raises DamagedPartError: one is damaged.
    """

    def footer(file: pq.ParquetFile) -> Footer:
        schema, metadata = file.schema_arrow, file.metadata
        inputs = schema.field("input").type if "input" in schema.names else None
        extreme, decoded = frozenset(_extreme_columns(metadata)), decoded_bytes(metadata)
        return Footer(inputs, extreme, decoded, kinds_of(schema), *tokens_of(metadata))

    return list(in_order(lambda part: read_part(folder, part.path, part.bytes, footer), parts))


def input_types(
    found: Iterable[Footer], source: pa.Schema, outputs: Collection[str]
) -> dict[str, pa.DataType]:
    """The type of each input column, in the order of the source, columns that it lacks last.

    :param found: of all parts, in the order of the input.
    :param source: columns as preflight saw them.
    :param outputs: names of the output columns; only failed rows have an input column of such a name.
    """
    taken = {name.lower() for name in outputs}
    types: dict[str, dict[pa.DataType, None]] = {}
    kinds: dict[str, Kind] = {}
    extreme: set[str] = set()
    for footer in found:
        for column in footer.inputs or ():
            if column.name in footer.kinds:
                kinds[column.name] = join(kinds.get(column.name, NULL), footer.kinds[column.name])
            else:
                types.setdefault(column.name, {})[column.type] = None
        extreme |= footer.extreme
    chosen = {name: source.field(name).type for name in source.names}
    chosen.update({name: common_type(*found) for name, found in types.items()})
    chosen.update({name: arrow_type(kind) for name, kind in kinds.items()})
    return {
        name: pa.string() if _is_unfit(name, kind, () if name in kinds else extreme) else kind
        for name, kind in chosen.items()
        if name.lower() not in taken
    }


def common_type(first: pa.DataType, *others: pa.DataType) -> pa.DataType:
    """The type that holds the values of all, else text: also where later ones would make bytes of text."""
    merged = first
    for other in others:
        if (found := _merged(merged, other)) is None:
            return pa.string()
        merged = found
    return merged


def _merged(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    if one.equals(other):
        return one
    if pa.uint64() in (one, other) and (pa.types.is_signed_integer(one) or pa.types.is_signed_integer(other)):
        return pa.decimal128(20, 0)
    if pa.types.is_decimal(one) != pa.types.is_decimal(other) and (
        pa.types.is_floating(one) or pa.types.is_floating(other)
    ):
        return None  # a double rounds most decimals
    try:
        merged = pa.unify_schemas(
            [pa.schema([("x", one)]), pa.schema([("x", other)])], promote_options="permissive"
        )
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        return None
    kind = merged.field("x").type
    known = not (pa.types.is_null(one) or pa.types.is_null(other))
    narrow = pa.types.is_nested(kind) or pa.types.is_duration(kind) or pa.types.is_float16(kind)
    if known and narrow and _fragile(one) != _fragile(other):
        return None
    if pa.types.is_decimal(kind) and pa.types.is_integer(one) + pa.types.is_integer(other):
        return _decimal_of_integers(kind.scale, kind.precision)
    return kind


def _fragile(kind: pa.DataType) -> set[pa.DataType]:
    """Types inside of nested ones whose values may not fit the type that Arrow merges them into."""
    return {
        leaf
        for _, leaf in _leaves("", kind)
        if leaf == pa.uint64() or pa.types.is_decimal(leaf) or pa.types.is_duration(leaf)
    }


def _decimal_of_integers(scale: int, precision: int) -> pa.DataType | None:
    """With room for each whole number of 64 bits before the point; Arrow leaves less."""
    needed = max(precision, scale + 20)
    return pa.decimal128(needed, scale) if needed <= 38 else None


def cast(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """`array` as `kind`, which :func:`input_types` chose."""
    if array.type.equals(kind):
        return array
    if not (pa.types.is_string(kind) and pa.types.is_duration(array.type)):  # Arrow writes a bare number
        with contextlib.suppress(pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError):
            return array.cast(kind)
    if not pa.types.is_string(kind):
        return pa.array(array.to_pylist(), kind)
    return pa.array([as_text(row["x"]) for row in row_values(pa.table({"x": array}))], kind)


def _is_unfit(name: str, kind: pa.DataType, extreme: Collection[str]) -> bool:
    """Whether text is better: there are no values, or not each survives as `kind`."""
    if pa.types.is_null(kind):
        return True
    return any(
        pa.types.is_floating(leaf) or (pa.types.is_timestamp(leaf) and leaf.unit == "ns")
        for path, leaf in _leaves(name, kind)
        if path in extreme
    )


def _leaves(path: str, kind: pa.DataType) -> Iterator[tuple[str, pa.DataType]]:
    """The values inside of nested ones, by the path that Parquet gives them."""
    if pa.types.is_struct(kind):
        for number in range(kind.num_fields):
            yield from _leaves(f"{path}.{kind.field(number).name}", kind.field(number).type)
    elif pa.types.is_map(kind):
        yield from _leaves(f"{path}.key_value.key", kind.key_type)
        yield from _leaves(f"{path}.key_value.value", kind.item_type)
    elif hasattr(kind, "value_type"):
        yield from _leaves(f"{path}.list.element", kind.value_type)
    else:
        yield path, kind


def _extreme_columns(metadata: pq.FileMetaData) -> set[str]:
    """Input columns with whole numbers or times that a double or a count of nanoseconds can't hold."""
    found = set()
    for group in (metadata.row_group(number) for number in range(metadata.num_row_groups)):
        for column in (group.column(number) for number in range(group.num_columns)):
            statistics = column.statistics
            if statistics is not None and statistics.has_min_max and _has_extreme(statistics):
                found.add(column.path_in_schema.partition(".")[2])
    return found


def _has_extreme(statistics: pq.Statistics) -> bool:
    try:
        return _is_extreme(statistics.min) or _is_extreme(statistics.max)
    except (ValueError, OverflowError):  # a time, or a text, that Python has no value for
        return True


def _is_extreme(value: object) -> bool:
    if isinstance(value, datetime.datetime):
        return not _NANOSECOND_YEARS[0] <= value.year <= _NANOSECOND_YEARS[1]
    return isinstance(value, int) and abs(value) > _LARGEST_EXACT
