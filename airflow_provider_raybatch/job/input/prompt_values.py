# SPDX-License-Identifier: Apache-2.0
"""Marks Python values with what a prompt's text needs of the schema: widths of floats, maps, class names."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, TypeAlias

import pyarrow as pa

from airflow_provider_raybatch.contract.prompt_text import Float16, Float32, MapEntries
from airflow_provider_raybatch.job.input.class_labels import label_marks

_Mark: TypeAlias = Callable[[Any], Any]
_FLOATS: dict[pa.DataType, _Mark] = {pa.float16(): Float16, pa.float32(): Float32}


def mark(rows: Sequence[Any], schema: pa.Schema, columns: Collection[str]) -> None:
    """Replace values of these columns by marked, equal ones; rows that are not a ``dict`` stay."""
    for column in schema:
        marked = _mark(column.type) if column.name in columns else None
        if marked is not None:
            for row in [one for one in rows if isinstance(one, dict)]:
                row[column.name] = marked(row[column.name])
    for name, named in label_marks(schema, columns).items():
        for row in [one for one in rows if isinstance(one, dict)]:
            row[name] = named(row[name])


def _mark(kind: pa.DataType) -> _Mark | None:
    """``None`` where no mark is needed."""
    if isinstance(kind, pa.BaseExtensionType):
        return _mark(kind.storage_type)
    if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        return _mark(kind.value_type)
    made = _FLOATS.get(kind)
    if pa.types.is_map(kind):
        key, item = _mark(kind.key_type) or _same, _mark(kind.item_type) or _same
        made = lambda entries: MapEntries((key(name), item(value)) for name, value in entries)  # noqa: E731
    elif pa.types.is_struct(kind):
        inner = {field.name: found for field in kind if (found := _mark(field.type)) is not None}
        if inner:
            made = lambda value: {**value, **{name: of(value[name]) for name, of in inner.items()}}  # noqa: E731
    elif hasattr(kind, "value_type") and (of_list := _mark(kind.value_type)) is not None:
        made = lambda values: [of_list(value) for value in values]  # noqa: E731
    return None if made is None else lambda value: None if value is None else made(value)


def _same(value: Any) -> Any:
    return value
