# SPDX-License-Identifier: Apache-2.0
"""Types of the columns of JSONL, which has none.

A *kind* describes the values of a column: a word, ``["list", kind]`` or ``["object", {key: kind}]``. Kinds of
pieces join, in any order, to the kind of the whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

Kind = str | list[Any]
NULL, BOOL, INT, LONG, FLOAT, STRING, TEXT = "null", "bool", "int", "long", "float", "string", "text"
"""`INT` are whole numbers that a double holds exactly, `LONG` others of 64 bits; `TEXT` fits no type."""

MOST_FIELDS = 100
"""Keys of all objects of a column; with more, the column stays JSON text."""
_DEEPEST = 20
"""Levels of nesting; pyarrow can't read much deeper ones from Parquet."""
_EXACT = 2**53
_SCALARS: dict[type, str] = {bool: BOOL, float: FLOAT, str: STRING}
_ARROW = {
    NULL: pa.null(),
    BOOL: pa.bool_(),
    INT: pa.int64(),
    LONG: pa.int64(),
    FLOAT: pa.float64(),
    STRING: pa.string(),
    TEXT: pa.string(),
}


def kind_of(values: Sequence[Any], depth: int = _DEEPEST) -> Kind:
    """The kind of values as JSON's reader makes them."""
    types = set(map(type, values)) - {type(None)}
    if not types:
        return NULL
    if depth == 0:
        return TEXT
    if types <= {int, float}:
        found = [_of_integers([value for value in values if type(value) is int])] if int in types else []
        return join(FLOAT, *found) if float in types else found[0]
    if len(types) > 1:
        return TEXT
    (one,) = types
    if one in _SCALARS:
        return _SCALARS[one]
    if one is list:
        return _list(kind_of([item for value in values if value is not None for item in value], depth - 1))
    if one is dict:
        return _kind_of_objects([value for value in values if value is not None], depth)
    return TEXT


def join(*kinds: Kind) -> Kind:
    """The kind of values of all these kinds; :data:`NULL` for none."""
    joined: Kind = NULL
    for kind in kinds:
        joined = _join(joined, kind)
    return joined


def arrow_type(kind: Kind) -> pa.DataType:
    """The Arrow type of a column; text where Parquet has none for it."""
    return _arrow(kind) or pa.string()


def _arrow(kind: Kind) -> pa.DataType | None:
    if isinstance(kind, str):
        return _ARROW[kind]
    if kind[0] == "list":
        inner = _arrow(kind[1])
        return None if inner is None else pa.list_(inner)
    fields = [(name, _arrow(inner)) for name, inner in kind[1].items()]
    # Parquet has no struct without fields.
    return None if not fields or any(inner is None for _, inner in fields) else pa.struct(fields)


def _join(one: Kind, other: Kind) -> Kind:
    if one == other or other == NULL:
        return one
    if one == NULL:
        return other
    if isinstance(one, str) or isinstance(other, str):
        pair = {str(one), str(other)}
        return LONG if pair == {INT, LONG} else FLOAT if pair == {INT, FLOAT} else TEXT
    if one[0] != other[0]:
        return TEXT
    if one[0] == "list":
        return _list(_join(one[1], other[1]))
    names = dict.fromkeys([*one[1], *other[1]])
    return _object({name: _join(one[1].get(name, NULL), other[1].get(name, NULL)) for name in names})


def _of_integers(values: Sequence[int]) -> Kind:
    low, high = min(values), max(values)
    if low >= -_EXACT and high <= _EXACT:
        return INT
    return LONG if low >= -(2**63) and high < 2**63 else TEXT


def _kind_of_objects(values: Sequence[dict[str, Any]], depth: int) -> Kind:
    fields: dict[str, list[Any]] = {}
    for value in values:
        for name, inner in value.items():
            fields.setdefault(name, []).append(inner)
        if len(fields) > MOST_FIELDS:
            return TEXT
    return _object({name: kind_of(inner, depth - 1) for name, inner in fields.items()})


def _list(inner: Kind) -> Kind:
    return TEXT if inner == TEXT else ["list", inner]


def _object(fields: dict[str, Kind]) -> Kind:
    kind: Kind = ["object", fields]
    return TEXT if TEXT in fields.values() or _fields(kind) > MOST_FIELDS else kind


def _fields(kind: Kind) -> int:
    if isinstance(kind, str):
        return 0
    if kind[0] == "list":
        return _fields(kind[1])
    return len(kind[1]) + sum(_fields(inner) for inner in kind[1].values())
