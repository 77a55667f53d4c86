# SPDX-License-Identifier: Apache-2.0
"""How the model answers, and what a good response is."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, field_validator

from airflow_provider_raybatch.contract.base import ContractModel, shown

NOT_KEPT = frozenset({
    "logprobs", "prompt_logprobs", "flat_logprobs", "logprob_token_ids", "prompt_logprob_token_ids",
})  # fmt: skip
"""Sampling parameters whose results no column of the dataset holds."""
_CONSTRAINING = frozenset({
    "$dynamicRef", "$recursiveRef", "$ref", "additionalItems", "additionalProperties", "allOf", "anyOf",
    "const", "contains", "dependencies", "dependentRequired", "dependentSchemas", "enum",
    "exclusiveMaximum", "exclusiveMinimum", "format", "if", "items", "maxItems", "maxLength",
    "maxProperties", "maximum", "minItems", "minLength", "minProperties", "minimum", "multipleOf", "not",
    "oneOf", "pattern", "patternProperties", "prefixItems", "properties", "propertyNames", "required",
    "type", "unevaluatedItems", "unevaluatedProperties", "uniqueItems",
})  # fmt: skip
"""Keywords of JSON Schema, in all its drafts, that a value may violate."""


class SamplingArguments(ContractModel):
    """How the model answers, and what a good response is."""

    sampling: dict[str, Any] = Field(default_factory=dict)
    sampling_column: str | None = None
    response_format: Literal["text", "json_object"] = "text"
    on_truncated: Literal["keep", "error"] = "keep"

    @field_validator("response_format", mode="before")
    @classmethod
    def _openais_form(cls, value: Any) -> Any:
        kind = value.get("type") if isinstance(value, dict) else None
        if kind in ("text", "json_object"):
            return kind
        if kind == "json_schema":
            raise ValueError(
                "'json_schema' is OpenAI's; write sampling={'structured_outputs': {'json': {...}}} with the "
                "schema itself"
            )
        return value

    @field_validator("sampling")
    @classmethod
    def _known_sampling(cls, value: dict[str, Any]) -> dict[str, Any]:
        n = value.get("n", 1)
        if not isinstance(n, int) or isinstance(n, bool) or n < 1:
            raise ValueError(
                f"n: the number of completions must be a whole number of at least 1, but it is {n!r}"
            )
        check_sampling(value)
        return value

    @property
    def needs_json(self) -> bool:
        """Whether a good response must parse as JSON."""
        return self.response_format == "json_object" or asks_json(self.sampling)


def asks_json(sampling: Mapping[str, Any]) -> bool:
    """Whether `structured_outputs` of these parameters constrain a response to JSON."""
    structured = sampling.get("structured_outputs")
    return isinstance(structured, Mapping) and bool(structured.get("json") or structured.get("json_object"))


def schema_of(structured: Any) -> Any:
    """The JSON schema in `structured_outputs`, parsed where it is text; ``None`` without one.

    :raises ValueError: it is not a JSON schema, or constrains nothing.
    """
    given = structured.get("json") if isinstance(structured, Mapping) else None
    if given is None:
        return (
            {"type": "object"} if isinstance(structured, Mapping) and structured.get("json_object") else None
        )
    field = "structured_outputs: json"
    try:
        schema = json.loads(given) if isinstance(given, str) else given
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{field}: the text is not JSON ({error}); give a JSON schema") from None
    if not isinstance(schema, Mapping):
        raise ValueError(f"{field}: it must be a JSON schema, an object, but it is {shown(schema)}")
    constrains = not _CONSTRAINING.isdisjoint(schema)
    wraps = any(isinstance(schema.get(name), Mapping) for name in ("schema", "json_schema"))
    if wraps and (not constrains or schema.get("type") == "json_schema"):
        raise ValueError(
            f"{field}: it wraps a schema, as OpenAI's response_format does, and constrains nothing itself; "
            "give the schema alone, which is the object under 'schema'"
        )
    if not constrains:
        raise ValueError(
            f"{field}: {shown(dict(schema))} has no keyword that constrains a value; add 'type' and "
            "'properties', or use json_object=True for any object"
        )
    return schema


def check_sampling(values: Mapping[str, Any]) -> None:
    """Refuse sampling parameters that no engine can honour, of a job or of a row.

    :raises ValueError: the dataset has no column for a result, a value is not a finite number, or the JSON
        schema constrains nothing.
    """
    for name, value in values.items():
        if name in NOT_KEPT and value is not None and value is not False:
            raise ValueError(f"{name}: the dataset has no column for log probabilities; remove it")
        try:
            json.dumps(value, allow_nan=False, skipkeys=True, default=str)
        except ValueError:
            raise ValueError(f"{name}: {shown(value)} is not finite; give a finite number") from None
    schema_of(values.get("structured_outputs"))
