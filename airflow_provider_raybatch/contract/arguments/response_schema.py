# SPDX-License-Identifier: Apache-2.0
"""The JSON schema of `response_format`, whose properties become columns of the dataset.

Here is what both sides need of it: the object at its top, and whether its names can be columns. Python's
types stand for JSON's; whether it is a valid schema is checked on the cluster.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import unquote

from airflow_provider_raybatch.contract.arguments.vllm_sampling import CONSTRAINTS
from airflow_provider_raybatch.contract.base import checked_column_name, shown

_KINDS = {"integer": "a number", "number": "a number", "boolean": "true or false", "string": "text"}
"""What a property of a JSON schema holds, by its type."""
_TYPES = (*_KINDS, "array", "null", "object")


def schema_problem(error: Any) -> str:
    """What is wrong with a JSON schema, with the keyword's path; of jsonschema's ``SchemaError``."""
    path = list(error.absolute_path)
    if "type" in path[-2:] and path[-2:-1] != ["properties"]:
        return f"{error.json_path}: {error.instance!r} is not a type of JSON; known are {', '.join(_TYPES)}"
    return f"{error.json_path}: {error.message}"


def unwrapped(value: Mapping[str, Any]) -> Any:
    """`value` without OpenAI's forms around it: its ``text`` and ``json_object``, or the schema alone."""
    kind = value.get("type")
    if kind in ("text", "json_object") and set(value) == {"type"}:
        return kind
    if kind != "json_schema":
        return value
    inner = value.get("json_schema", value)
    schema = inner.get("schema") if isinstance(inner, Mapping) else None
    return schema if isinstance(schema, Mapping) else value


def followed(part: Any, root: Any, seen: frozenset[str] = frozenset()) -> tuple[Any, frozenset[str]]:
    """The schema that `part` stands for by a ``$ref``, or by an ``allOf`` of one.

    :param root: the document that references begin in.
    :param seen: references around `part`.
    :returns: ``None`` for a reference that leads back to itself or elsewhere; and all references so far.
    """
    while isinstance(part, Mapping):
        others = {name: value for name, value in part.items() if name not in ("$ref", "allOf")}
        together = part.get("allOf")
        if isinstance(name := part.get("$ref"), str):
            target = target_of(name, root)
            if name in seen or not isinstance(target, Mapping):
                return None, seen
            seen |= {name}
            part = {**target, **others}
        elif isinstance(together, list) and len(together) == 1 and isinstance(together[0], Mapping):
            part = {**together[0], **others}
        else:
            break
    return part, seen


def target_of(reference: str, root: Any) -> Any:
    """The schema that a reference into the document `root` leads to; ``None`` where that lacks it."""
    if not reference.startswith("#"):
        return None
    found = root
    for step in unquote(reference[1:]).split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        if isinstance(found, list) and name.isdecimal() and int(name) < len(found):
            found = found[int(name)]
        else:
            found = found.get(name) if isinstance(found, Mapping) else None
    return found


def properties_of(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema of each property of the object at the top.

    :raises ValueError: the top of the schema is not an object, or has no properties that can be columns.
    """
    top, _ = followed(schema, schema)
    properties = top.get("properties") if isinstance(top, Mapping) else None
    if not isinstance(properties, Mapping) or not properties or top.get("type", "object") != "object":
        raise ValueError(
            f"{shown(dict(schema))} has no object with 'properties' at its top, and these become columns; "
            "wrap it: {'type': 'object', 'properties': {'items': ...}, 'required': ['items']}, or write "
            "response_format='json_object' for any object"
        )
    return dict(properties)


def check_names(properties: Iterable[str], prefix: str, taken: Mapping[str, str]) -> None:
    """Check that each property can be a column.

    :param prefix: put before the properties' names.
    :param taken: what has a column already, by its name in lower case, as a clause.
    :raises ValueError: names the first property that can't.
    """
    names: dict[str, str] = {}
    for name in properties:
        try:
            column = checked_column_name(prefix + name)
        except ValueError as error:
            raise ValueError(f"a property can't be a column: {error}") from None
        if (other := names.setdefault(column.lower(), column)) != column:
            raise ValueError(
                f"properties {other!r} and {column!r} differ by case alone, and many warehouses take them "
                "for one column; rename one"
            )
        if (whose := taken.get(column.lower())) is not None:
            raise ValueError(f"property {name!r} would be the column {column!r}, {whose}")


def constrained(sampling: Mapping[str, Any], schema: Mapping[str, Any]) -> dict[str, Any]:
    """Sampling parameters that constrain responses to `schema`, as a user would write them.

    :raises ValueError: they have another constraint.
    """
    given = sampling.get("structured_outputs") or {}
    known = given if isinstance(given, Mapping) else dict.fromkeys(CONSTRAINTS, given)
    for name in CONSTRAINTS:
        if (value := known.get(name)) is not None and not (name == "json" and _is_same(value, schema)):
            raise ValueError(
                "sampling: structured_outputs has a constraint, and response_format sets another one; keep "
                "one of both"
            )
    return {**sampling, "structured_outputs": {**given, "json": dict(schema)}}


def _is_same(value: Any, schema: Mapping[str, Any]) -> bool:
    try:
        return bool((json.loads(value) if isinstance(value, str) else value) == schema)
    except ValueError:
        return False


def kind_of_values(part: Any, root: Any, seen: frozenset[str] = frozenset()) -> str | None:
    """What the column of a property holds, unless null: ``text``, ``a number`` or ``true or false``.

    :param part: the property's schema.
    :param root: the document that references begin in.
    :param seen: references around `part`.
    :returns: ``None`` for a list, an object, and JSON text, which stands for values of several types.
    """
    part, seen = followed(part, root, seen)
    if not isinstance(part, Mapping):
        return None
    types = part.get("type", "object" if "properties" in part else None)
    if isinstance(types, list):
        types = [name for name in types if name != "null"]
        types = types[0] if len(types) == 1 else "several"
    if types is not None:
        return _KINDS.get(types) if isinstance(types, str) else None
    if "enum" in part or "const" in part:
        values = part.get("enum", [part.get("const")])
        kinds = {_kind(value) for value in values if value is not None} if isinstance(values, list) else set()
        return kinds.pop() if len(kinds) == 1 else None
    options = part.get("anyOf", part.get("oneOf"))
    if not isinstance(options, list):
        return None
    others = [one for one in options if not (isinstance(one, Mapping) and one.get("type") == "null")]
    return kind_of_values(others[0], root, seen) if len(others) == 1 else None


def _kind(value: Any) -> str | None:
    if isinstance(value, bool):
        return _KINDS["boolean"]
    return "a number" if isinstance(value, (int, float)) else "text" if isinstance(value, str) else None
