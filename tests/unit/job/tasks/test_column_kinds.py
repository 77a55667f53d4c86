# SPDX-License-Identifier: Apache-2.0
"""What the Airflow side knows of a typed column is what the job makes of it."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from airflow_provider_raybatch.contract.arguments.response_schema import kind_of_values
from airflow_provider_raybatch.job.input.json_types import TEXT, arrow_type
from airflow_provider_raybatch.job.tasks.typed_columns import column_kinds

DEFINED = {
    "level": {"enum": [1, 2], "type": "integer"},
    "again": {"$ref": "#/$defs/level"},
    "loop": {"$ref": "#/$defs/loop"},
    "tree": {"type": "object", "properties": {"left": {"$ref": "#/$defs/tree"}}},
}
NULL: dict[str, Any] = {"type": "null"}
KINDS: dict[pa.DataType, str] = {
    pa.int64(): "a number",
    pa.float64(): "a number",
    pa.bool_(): "true or false",
    pa.string(): "text",
}


@pytest.mark.parametrize(
    "part",
    [
        {"type": "integer"},
        {"type": "number"},
        {"type": "boolean"},
        {"type": "string"},
        {"type": ["integer", "null"]},
        {"type": ["integer", "number"]},
        {"type": ["integer", "string"]},
        {"type": "null"},
        {"type": []},
        {"type": "array", "items": {"type": "integer"}},
        {"type": "array"},
        {"type": "object", "properties": {"a": {"type": "integer"}}},
        {"properties": {"a": {"type": "integer"}}},
        {"type": "object"},
        {},
        True,
        {"enum": [1, 2]},
        {"enum": [1, 2.5, None]},
        {"enum": ["a", "b"]},
        {"enum": ["a", 1]},
        {"enum": [True, 1]},
        {"enum": [[1]]},
        {"enum": []},
        {"enum": [None]},
        {"const": "a"},
        {"const": False},
        {"const": 1.5},
        {"$ref": "#/$defs/level"},
        {"$ref": "#/$defs/again"},
        {"$ref": "#/$defs/loop"},
        {"$ref": "#/$defs/tree"},
        {"$ref": "#/$defs/none"},
        {"allOf": [{"$ref": "#/$defs/level"}]},
        {"anyOf": [{"$ref": "#/$defs/level"}, NULL]},
        {"anyOf": [{"type": "integer"}, NULL]},
        {"oneOf": [{"type": "boolean"}, NULL]},
        {"anyOf": [{"type": "integer"}, {"type": "number"}]},
        {"anyOf": [{"type": "boolean", "const": True}, {"type": "boolean", "const": False}]},
        {"anyOf": [{"anyOf": [{"enum": ["a"]}, NULL]}, NULL]},
        {"anyOf": [NULL]},
        {"anyOf": {}},
        {"allOf": [{"type": "integer"}, {"minimum": 1}]},
    ],
    ids=str,
)
def test_both_sides_know_what_a_column_holds(part: Any) -> None:
    """The Airflow side judges conditions and `best` by it, and has no Arrow."""
    schema = {"type": "object", "properties": {"x": part}, "$defs": DEFINED}
    column = column_kinds(schema)["x"]
    expected = None if column == TEXT else KINDS.get(arrow_type(column))
    assert kind_of_values(part, schema) == expected
