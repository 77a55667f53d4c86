# SPDX-License-Identifier: Apache-2.0
"""Whether a value fits the whole JSON schema of its request.

A grammar ignores parts of a schema without a message: XGrammar `not`, `if`, `dependentRequired`, what stands
beside `$ref` or `anyOf`, and bounds without a `type`.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any

from airflow_provider_raybatch.contract.arguments.response_schema import schema_problem, target_of
from airflow_provider_raybatch.contract.arguments.sampling import schema_of

_DATA = frozenset({"default", "examples", "const", "enum"})
_NAMING = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
_MOST_SCHEMAS = 256
_LONGEST = 200


def check_schema(structured: Any) -> None:
    """Check that structured outputs have a JSON schema of any draft, in one document.

    :raises ValueError: what is wrong with it, as a clause that names the keyword.
    """
    schema = schema_of(structured)
    if schema is None:
        return
    _validator(json.dumps(schema))
    for part in _parts(schema):
        name = part.get("$ref", "#")
        if not name.startswith("#") and "$id" not in schema:
            raise ValueError(
                f"refers to {name!r}, and no engine reads other documents; copy it "
                "into '$defs' and refer to '#/$defs/...'"
            )
        if name.startswith("#/") and target_of(name, schema) is None:
            raise ValueError(f"refers to {name!r}, which it lacks; define it there")


def _parts(part: Any, has_names: bool = False) -> Iterator[Mapping[str, Any]]:
    """All schemas in a schema.

    :param has_names: whether the keys of `part` are names, and not keywords.
    """
    if isinstance(part, list):
        for inner in part:
            yield from _parts(inner)
    elif isinstance(part, Mapping):
        if not has_names:
            yield part
        for name, inner in part.items():
            if has_names or name not in _DATA:
                yield from _parts(inner, not has_names and name in _NAMING)


def misfit(value: Any, structured: Mapping[str, Any]) -> str:
    """Why a value does not fit, as a clause; empty if it fits, or if Python can't tell.

    :param value: as Python parses JSON.
    :param structured: asks for JSON.
    """
    from jsonschema.exceptions import best_match

    schema = structured.get("json") or {"type": "object"}
    try:
        text = schema if isinstance(schema, str) else json.dumps(schema)
        error = best_match(_validator(text).iter_errors(value))
    except Exception:  # a reference to elsewhere, or too many levels: the grammar decides
        return ""
    if error is None:
        return ""
    reason = error.message
    return f"{error.json_path}: {reason if len(reason) <= _LONGEST else reason[:_LONGEST] + '...'}"


@functools.lru_cache(_MOST_SCHEMAS)
def _validator(text: str) -> Any:
    from jsonschema import SchemaError, validators  # Ray and vLLM bring it; most jobs don't need it
    from referencing import Registry

    schema = json.loads(text)
    if "properties" in schema and "type" not in schema:
        schema["type"] = "object"  # as xgrammar takes it; to the standard, any number would fit
    newest = validators.Draft202012Validator
    kinds = [validators.validator_for(schema, default=newest)]
    if "$schema" not in schema:  # older drafts write lists of items and exclusive bounds in another way
        kinds += [validators.Draft7Validator, validators.Draft4Validator]
    refused = ""
    for kind in kinds:
        try:
            kind.check_schema(schema, format_checker=None)
        except SchemaError as error:
            refused = refused or schema_problem(error)
            continue
        tolerant = validators.extend(kind, {"pattern": _pattern, "multipleOf": _multiple_of})
        return tolerant(schema, registry=Registry())  # which gets nothing from the network
    raise ValueError(f"is not a JSON schema ({refused}); correct it")


def _pattern(validator: Any, pattern: str, value: Any, schema: Any) -> Iterator[Any]:
    """Ignores patterns that Python doesn't know, such as those of Unicode's classes."""
    from jsonschema import ValidationError

    try:
        fits = not validator.is_type(value, "string") or re.search(pattern, value)
    except re.error:
        return
    if not fits:
        yield ValidationError(f"{value!r} does not match {pattern!r}")


def _multiple_of(validator: Any, divisor: float, value: Any, schema: Any) -> Iterator[Any]:
    """In decimals: as floats, 0.07 is not a multiple of 0.01."""
    from jsonschema import ValidationError

    if validator.is_type(value, "number") and Decimal(repr(value)) % Decimal(repr(divisor)):
        yield ValidationError(f"{value!r} is not a multiple of {divisor!r}")
