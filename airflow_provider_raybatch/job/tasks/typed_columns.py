# SPDX-License-Identifier: Apache-2.0
"""Typed columns of a JSON schema: one for each property of the object at its top.

They are made of the text of a response when the dataset is published, so parts and the response store hold
texts alone, and a stored response serves jobs with and without typed columns.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from airflow_provider_raybatch.contract.arguments.response_schema import followed, properties_of
from airflow_provider_raybatch.contract.base import shown
from airflow_provider_raybatch.job.input.json_types import (
    BOOL,
    FLOAT,
    INT,
    LONG,
    NULL,
    STRING,
    TEXT,
    Kind,
    arrow_type,
    kind_of,
)

_DEEPEST = 20
"""Levels of nesting; pyarrow can't read much deeper ones from Parquet."""
_MOST_PARTS = 500
"""Schemas inside of one property, after which the rest is JSON text: references may multiply without end."""
_LARGEST = sys.float_info.max
_ROWS_AT_ONCE = 10_000
_TYPES = {"string": STRING, "boolean": BOOL, "integer": LONG, "number": FLOAT}
_HOLDS = {
    STRING: "text",
    BOOL: "true or false",
    LONG: "whole numbers of 64 bits",
    FLOAT: "finite numbers",
}


def column_kinds(schema: Mapping[str, Any]) -> dict[str, Kind]:
    """The kind of each property's column.

    Objects with named properties and lists keep their structure; what may be of several types is
    :data:`~airflow_provider_raybatch.job.input.json_types.TEXT`, which stands for JSON text here.
    """
    _, seen = followed(schema, schema)
    return {name: _Kinds(schema).of(part, seen, _DEEPEST) for name, part in properties_of(schema).items()}


class _Kinds:
    """The kinds of the parts of one property."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._left = _MOST_PARTS

    def of(self, part: Any, seen: frozenset[str], depth: int) -> Kind:
        """The kind of values that fit `part`.

        :param seen: references that were followed to get there; a second time, recursion begins.
        """
        self._left -= 1
        part, seen = followed(part, self._root, seen)
        if not isinstance(part, Mapping) or depth == 0 or self._left < 0:
            return TEXT
        types = part.get("type", "object" if "properties" in part else None)
        if isinstance(types, list):
            types = [name for name in types if name != "null"]
            types = types[0] if len(types) == 1 else "several"
        if types == "array":
            items = part.get("items")
            is_plain = isinstance(items, Mapping) and "prefixItems" not in part
            return ["list", self.of(items, seen, depth - 1)] if is_plain else TEXT
        if types == "object":
            return self._object(part, seen, depth)
        if types is not None:
            return _TYPES.get(types, TEXT) if isinstance(types, str) else TEXT
        if "enum" in part or "const" in part:
            return _of_values(part.get("enum", [part.get("const")]))
        return self._union(part, seen, depth)

    def _object(self, part: Mapping[str, Any], seen: frozenset[str], depth: int) -> Kind:
        properties = part.get("properties")
        is_open = part.get("additionalProperties") or part.get("patternProperties")
        if not isinstance(properties, Mapping) or not properties or is_open:
            return TEXT  # any names, and a struct has its own
        if not all(isinstance(name, str) and name and name == _whole(name) for name in properties):
            return TEXT
        return ["object", {name: self.of(one, seen, depth - 1) for name, one in properties.items()}]

    def _union(self, part: Mapping[str, Any], seen: frozenset[str], depth: int) -> Kind:
        options = part.get("anyOf", part.get("oneOf"))
        if not isinstance(options, list):
            return TEXT
        values = [one for one in options if not (isinstance(one, Mapping) and one.get("type") == "null")]
        return self.of(values[0], seen, depth - 1) if len(values) == 1 else TEXT


def _of_values(values: Any) -> Kind:
    kind = kind_of(values) if isinstance(values, list) else TEXT
    if kind == INT:
        return LONG
    return kind if isinstance(kind, str) and kind != NULL else TEXT


def values_of(text: str, kinds: Mapping[str, Kind]) -> dict[str, Any]:
    """The values of the columns in a response; ``None`` for a property that it lacks.

    :raises ValueError: the response is not a JSON object, or a value does not fit its column.
    """
    try:
        found = json.loads(text)
        if not isinstance(found, dict):
            raise ValueError(f"$ is {shown(found)}, and not an object")
        return {name: _fitted(found.get(name), kind, f"$.{name}") for name, kind in kinds.items()}
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _fitted(value: Any, kind: Kind, where: str) -> Any:
    if value is None:
        return None
    if kind == TEXT:
        return _whole(json.dumps(value, ensure_ascii=False, allow_nan=False))
    if isinstance(kind, str):
        return _scalar(value, kind, where)
    if kind[0] == "list" and isinstance(value, list):
        return [_fitted(inner, kind[1], f"{where}[{place}]") for place, inner in enumerate(value)]
    if kind[0] == "object" and isinstance(value, dict):
        return {name: _fitted(value.get(name), inner, f"{where}.{name}") for name, inner in kind[1].items()}
    raise ValueError(f"{where} is {shown(value)}, and its column holds {kind[0]}s")


def _scalar(value: Any, kind: str, where: str) -> Any:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if kind == STRING and isinstance(value, str):
        return _whole(value)
    if kind == BOOL and isinstance(value, bool):
        return value
    if kind == LONG and is_number and value == value // 1 and -(2**63) <= value < 2**63:
        return int(value)  # JSON has 5.0 among the whole numbers
    if kind == FLOAT and is_number and abs(value) <= _LARGEST:
        return float(value)
    raise ValueError(f"{where} is {shown(value)}, and its column holds {_HOLDS[kind]}")


def _whole(text: str) -> str:
    """`text` with U+FFFD for half of a surrogate pair, which no column holds."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def arrow_types(kinds: Mapping[str, Kind]) -> dict[str, pa.DataType]:
    """The types of columns."""
    return {name: arrow_type(kind) for name, kind in kinds.items()}


def typed(
    texts: pa.StringArray | pa.ChunkedArray, kinds: Mapping[str, Kind]
) -> tuple[pa.ChunkedArray, pa.StringArray]:
    """The columns of responses as structs, and for each response why it fits none.

    :param texts: null for a row without a response.
    """
    kind = pa.struct(list(arrow_types(kinds).items()))
    pieces, reasons = [], []
    for start in range(0, len(texts), _ROWS_AT_ONCE):  # Python's values take many times as much
        made = [_made(text, kinds) for text in texts.slice(start, _ROWS_AT_ONCE).to_pylist()]
        pieces.append(pa.array([value for value, _ in made], kind))
        reasons += [reason for _, reason in made]
    return pa.chunked_array(pieces, kind), pa.array(reasons, pa.string())


def _made(text: str | None, kinds: Mapping[str, Kind]) -> tuple[dict[str, Any] | None, str | None]:
    try:
        return None if text is None else values_of(text, kinds), None
    except ValueError as error:
        return None, unfit(error, text or "")


def unfit(error: ValueError, text: str) -> str:
    """The reason of a dead letter."""
    return f"the response does not fit the columns of response_format ({error}): {text[:200]!r}"
