# SPDX-License-Identifier: Apache-2.0
"""Marks Python values with what a prompt's text needs of the schema: widths of floats, maps, class names.

``datasets`` stores the numbers of class labels, and their names in the schema's metadata. Only a prompt gets
names. The dataset keeps the numbers, as its source has them.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Collection, Sequence
from typing import Any, TypeAlias

import pyarrow as pa

from airflow_provider_raybatch.contract.row_template import ClassLabel, Float16, Float32, MapEntries

_Mark: TypeAlias = Callable[[Any], Any]
_FLOATS: dict[pa.DataType, _Mark] = {pa.float16(): Float16, pa.float32(): Float32}
_METADATA = b"huggingface"
_LISTS = frozenset({"Sequence", "List", "LargeList"})


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
    if pa.types.is_dictionary(kind):
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


def label_marks(schema: pa.Schema, columns: Collection[str]) -> dict[str, _Mark]:
    """For each of these columns that has class labels, alone or in lists and structs, what names them."""
    note = (schema.metadata or {}).get(_METADATA)
    if note is None or not columns:
        return {}
    return {name: mark for name, mark in _marks(note).items() if name in columns and name in schema.names}


@functools.lru_cache(8)
def _marks(note: bytes) -> dict[str, _Mark]:
    try:
        found = json.loads(note)["info"]["features"]
    except (KeyError, TypeError, ValueError):  # of another software, or without types
        return {}
    marks = {name: _label_mark(feature) for name, feature in found.items()} if isinstance(found, dict) else {}
    return {name: mark for name, mark in marks.items() if mark is not None}


def _label_mark(feature: Any) -> _Mark | None:
    """``None`` where there is nothing to name."""
    if isinstance(feature, list):
        return _label_mark(feature[0]) if feature else None
    if not isinstance(feature, dict):
        return None
    kind = feature.get("_type")
    if kind == "ClassLabel":
        return _naming(feature.get("names"))
    if isinstance(kind, str):
        return _label_mark(feature.get("feature")) if kind in _LISTS else None
    inner = {name: mark for name, one in feature.items() if (mark := _label_mark(one)) is not None}
    if not inner:
        return None
    return _in_lists(
        lambda value: (
            {name: inner[name](one) if name in inner else one for name, one in value.items()}
            if isinstance(value, dict)
            else value
        )
    )


def _naming(names: Any) -> _Mark | None:
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        return None
    labels = [ClassLabel.of(number, name) for number, name in enumerate(names)]
    # -1 stands for an unknown class.
    return _in_lists(
        lambda value: labels[value] if isinstance(value, int) and 0 <= value < len(labels) else value
    )


def _in_lists(mark: _Mark) -> _Mark:
    """`mark`, also for each item of lists: a sequence of structs may be stored as a struct of lists."""

    def each(value: Any) -> Any:
        return [each(one) for one in value] if isinstance(value, list) else mark(value)

    return each
