# SPDX-License-Identifier: Apache-2.0
"""Check that a response is JSON that fits a schema."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any

import jsonschema
import pyarrow as pa
from jsonschema.exceptions import best_match

from airflow_provider_raybatch.contract.arguments.response_schema import schema_problem
from airflow_provider_raybatch.contract.text import count_of
from airflow_provider_raybatch.workflows.errors import WorkflowError
from airflow_provider_raybatch.workflows.sift import Checked, Drop, text_column, with_column

_TYPES = {"string": pa.string(), "integer": pa.int64(), "number": pa.float64(), "boolean": pa.bool_()}
_LONGEST_VALUE = 80
_LONGEST_RESPONSE = 1_000_000


class SchemaCheck:
    """Drops responses that are not JSON, or do not fit a schema.

    Rules: ``no_response``, ``too_long`` (more than a million characters), ``not_json``, ``schema``.

    :param schema: JSON schema of an object. It may be the one in `structured_outputs`: a response that was
        cut off, or generated without structured output, can violate it.
    :param column: of the responses.
    :param extract: whether each property becomes a column: scalars with their type, other values as JSON
        text.
    :param prefix: put before the names of these columns.
    :raises WorkflowError: `schema` is not a JSON schema, or `extract` finds no properties in it.
    """

    def __init__(
        self,
        schema: Mapping[str, Any],
        column: str = "response",
        extract: bool = True,
        prefix: str = "",
        name: str = "schema",
    ) -> None:
        self.name = name
        self._column = column
        kind = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
        try:
            kind.check_schema(schema)
        except jsonschema.SchemaError as error:
            raise WorkflowError(
                f"schema: it is not a JSON schema ({schema_problem(error)}); correct it."
            ) from error
        self._validator = kind(schema)
        self._properties = dict(schema.get("properties", {})) if extract else {}
        if extract and not self._properties:
            raise WorkflowError(
                "schema: it has no 'properties' that could become columns; add them or set extract=False."
            )
        self._prefix = prefix

    def __call__(self, batch: pa.RecordBatch) -> Checked:
        """See :class:`SiftStep`."""
        parsed = [self.check(text) for text in text_column(batch, self._column)]
        drops = [one if isinstance(one, Drop) else None for one in parsed]
        for key, rule in self._properties.items():
            values = [None if isinstance(one, Drop) else one.get(key) for one in parsed]
            batch = with_column(batch, self._prefix + key, _array(values, rule))
        return Checked(batch, drops)

    def check(self, text: str | None) -> Any:
        """The parsed value of one response, or its :class:`Drop`."""
        if text is None or not text.strip():
            return Drop("no_response", "the response is empty")
        if len(text) > _LONGEST_RESPONSE:
            return Drop("too_long", f"the response has {count_of(len(text), 'character')}")
        try:
            value = json.loads(text, parse_constant=_refuse)
            if "\\ud" in text.lower():
                json.dumps(value, ensure_ascii=False).encode()  # Half a surrogate pair is not a character.
        except UnicodeEncodeError:
            return Drop("not_json", "the response has half a character (a lone surrogate)")
        except (ValueError, RecursionError) as error:
            return Drop("not_json", f"the response is not JSON ({_short(error)})")
        wrong = best_match(self._validator.iter_errors(value))
        if wrong is not None:
            return Drop("schema", clause(wrong))
        if self._properties and not isinstance(value, dict):
            return Drop("schema", "the response is not a JSON object")
        return value


def clause(error: jsonschema.ValidationError) -> str:
    """The error as a clause that names field and value."""
    field = ".".join(str(part) for part in error.absolute_path) or "the response"
    value, limit = _short(json.dumps(error.instance, ensure_ascii=False)), error.validator_value
    match error.validator:
        case "required":
            missing = next(name for name in limit if name not in error.instance)
            return f"{field} lacks {missing!r}"
        case "additionalProperties":
            known = error.schema.get("properties", {})
            odd = [name for name in error.instance if name not in known]
            return f"{field} has {odd[0]!r}, which is not in the schema" if odd else _short(error.message)
        case "type":
            kinds = " or ".join([limit] if isinstance(limit, str) else limit)
            return f"{field} is not of type {kinds}, but {value}"
        case "enum":
            return f"{field} is {value}, which is not one of {_short(json.dumps(limit, ensure_ascii=False))}"
        case "minimum" | "exclusiveMinimum":
            return f"{field} is {value}, less than the least value {limit}"
        case "maximum" | "exclusiveMaximum":
            return f"{field} is {value}, more than the greatest value {limit}"
        case "minLength":
            return f"{field} is {value}, shorter than {count_of(limit, 'character')}"
        case "maxLength":
            return f"{field} has {count_of(len(error.instance), 'character')}, more than {limit:,}"
        case "pattern":
            return f"{field} is {value}, which does not match {limit!r}"
    return f"{field}: {_short(error.message)}"


def _array(values: list[Any], rule: Any) -> pa.Array:
    kind = _kind(rule)
    if kind is None:
        return pa.array([None if one is None else json.dumps(one) for one in values], pa.string())
    if pa.types.is_int64(kind):
        # In JSON schema 4.0 is an integer, too. An integer beyond 64 bits becomes null.
        values = [None if one is None or abs(one) >= 2**63 else int(one) for one in values]
    if pa.types.is_float64(kind):
        values = [None if one is None or abs(one) > sys.float_info.max else float(one) for one in values]
    return pa.array(values, kind)


def _kind(rule: Any) -> pa.DataType | None:
    """Arrow type of a property; ``None`` if its values become JSON text."""
    if not isinstance(rule, dict):
        return None
    named = rule.get("type")
    kinds = [one for one in (named if isinstance(named, list) else [named]) if one not in {None, "null"}]
    if kinds:
        return _TYPES.get(kinds[0]) if len(kinds) == 1 else None
    is_text = "enum" in rule and all(isinstance(one, str) for one in rule["enum"])
    return pa.string() if is_text else None


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not a JSON value")


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= _LONGEST_VALUE else text[: _LONGEST_VALUE - 3] + "..."
