# SPDX-License-Identifier: Apache-2.0
"""How the model answers, which log probabilities are kept, and what a good response is."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from airflow_provider_raybatch.contract.arguments.response_schema import (
    constrained,
    properties_of,
    unwrapped,
)
from airflow_provider_raybatch.contract.base import SpecPart, is_import_path, shown

NOT_KEPT = frozenset({
    "flat_logprobs", "logprob_token_ids", "prompt_logprob_token_ids", "prompt_logprob_start",
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


class SamplingArguments(SpecPart):
    """How the model answers, and what a good response is.

    :param response_format: where it is a JSON schema, `sampling` has it, too.
    :param response_format_digest: hash of the source of a Pydantic model that travels with the job, set at
        submission, so that a changed model is a changed job.
    """

    sampling: dict[str, Any] = Field(default_factory=dict)
    sampling_column: str | None = None
    response_format: str | dict[str, Any] = "text"
    on_truncated: Literal["keep", "error"] = "keep"
    response_format_digest: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _schema_constrains(cls, data: Any) -> Any:
        """Put the schema of `response_format` where engines, checks and request keys read it."""
        given = data.get("response_format") if isinstance(data, Mapping) else None
        if not isinstance(given, Mapping) or not given:
            if is_import_path(given) and isinstance(sampling := data.get("sampling"), Mapping):
                constrained(sampling, {})  # refuses another constraint
            return data
        try:
            if isinstance(schema := unwrapped(given), str):
                return {**data, "response_format": schema}
            properties_of(_checked_schema(schema, "'json_object'"))
            check_finite(schema)
        except ValueError as error:
            raise ValueError(f"response_format: {error}") from None
        sampling = data.get("sampling") or {}
        if isinstance(sampling, Mapping):
            sampling = constrained(sampling, schema)
        return {**data, "sampling": sampling, "response_format": dict(schema)}

    @field_validator("response_format", mode="before")
    @classmethod
    def _known_format(cls, value: Any) -> Any:
        if value in ("text", "json_object") or is_import_path(value) or (value and isinstance(value, dict)):
            return value
        raise ValueError(
            "it must be 'text', 'json_object', a JSON schema (such as Model.model_json_schema()) or a "
            f"Pydantic model as 'package.module:Model', but it is {shown(value)}"
        )

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
        return self.response_format != "text" or asks_json(self.sampling)

    @property
    def response_model(self) -> str | None:
        """The Pydantic model of `response_format`, as ``module:Model``."""
        return self.response_format if is_import_path(self.response_format) else None  # type: ignore[return-value]

    @property
    def response_schema(self) -> Mapping[str, Any] | None:
        """The JSON schema whose properties are columns; that of a Pydantic model once the job knows it."""
        if self.response_format in ("text", "json_object"):
            return None
        found: Mapping[str, Any] | None = (self.sampling.get("structured_outputs") or {}).get("json")
        return found


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
    try:
        return _checked_schema(given)
    except ValueError as error:
        raise ValueError(f"structured_outputs: json: {error}") from None


def _checked_schema(given: Any, any_object: str = "json_object=True") -> Mapping[str, Any]:
    try:
        schema = json.loads(given) if isinstance(given, str) else given
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the text is not JSON ({error}); give a JSON schema") from None
    if not isinstance(schema, Mapping):
        raise ValueError(f"it must be a JSON schema, an object, but it is {shown(schema)}")
    constrains = not _CONSTRAINING.isdisjoint(schema)
    wraps = any(isinstance(schema.get(name), Mapping) for name in ("schema", "json_schema"))
    if wraps and (not constrains or schema.get("type") == "json_schema"):
        raise ValueError(
            "it wraps a schema, as OpenAI's response_format does, and constrains nothing itself; "
            "give the schema alone, which is the object under 'schema'"
        )
    if not constrains:
        raise ValueError(
            f"{shown(dict(schema))} has no keyword that constrains a value; add 'type' and "
            f"'properties', or use {any_object} for any object"
        )
    return schema


def check_sampling(values: Mapping[str, Any]) -> None:
    """Refuse sampling parameters that no engine can honour, of a job or of a row.

    :raises ValueError: the dataset has no column for a result, a value is not a finite number, the JSON
        schema constrains nothing, or there are no choices.
    """
    for name, value in values.items():
        if name in NOT_KEPT and value is not None and value is not False:
            raise ValueError(
                f"{name}: the dataset has no column for such log probabilities; remove it, or ask for "
                "logprobs or prompt_logprobs"
            )
        try:
            check_finite(value)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
    structured = values.get("structured_outputs")
    schema_of(structured)
    if isinstance(structured, Mapping) and structured.get("choice") == []:
        raise ValueError("structured_outputs has an empty list of choices; give at least one")


def check_finite(value: Any) -> None:
    """Refuse numbers that JSON does not have.

    :raises ValueError: one is in it.
    """
    try:
        json.dumps(value, allow_nan=False, skipkeys=True, default=str)
    except ValueError:
        given = dict(value) if isinstance(value, Mapping) else value
        raise ValueError(f"{shown(given)} is not finite; give a finite number") from None


LOGPROBS = {
    "prompt_logprobs": ("prompt_logprobs", "prompt_mean_logprob"),
    "logprobs": ("logprobs", "mean_logprob"),
}
"""What the dataset has for each of these sampling parameters, in the order of the dataset."""
_MOST_LOGPROBS = 20
"""VLLM's `max_logprobs` where engine_args set none."""


def are_asked(sampling: Mapping[str, Any], name: str) -> bool:
    """Whether sampling parameters ask for log probabilities; 0 asks for those of the chosen tokens."""
    value = sampling.get(name)
    return value is not None and value is not False


def kept_logprobs(sampling: Mapping[str, Any], rows_may_ask: bool) -> list[str]:
    """Those of :data:`LOGPROBS` that a dataset has.

    :param sampling: of the job.
    :param rows_may_ask: whether a row may ask for `logprobs` where the job does not.
    """
    return [name for name in LOGPROBS if are_asked(sampling, name) or (rows_may_ask and name == "logprobs")]


def check_logprobs(sampling: Mapping[str, Any], engine_args: Mapping[str, Any]) -> None:
    """Check how many alternatives a job asks for.

    :raises ValueError: a number is not one that vLLM takes; one sentence, without the argument's name.
    """
    most = engine_args.get("max_logprobs", _MOST_LOGPROBS)
    limit = most if isinstance(most, int) and most >= 0 else None
    for name in LOGPROBS:
        if not are_asked(sampling, name):
            continue
        value: Any = sampling[name]
        whole = isinstance(value, int) and not isinstance(value, bool) and value >= 0
        if not whole or (limit is not None and value > limit):
            to = "" if limit is None else f" to {limit}"
            raise ValueError(
                f"{name}: it must be a whole number from 0{to}, of the likeliest tokens beside each token, "
                f"but it is {shown(value)}; engine_args={{'max_logprobs': ...}} allows more"
            )


def check_of_row(sampling: Mapping[str, Any], of_job: Mapping[str, Any]) -> None:
    """Check a row's own sampling parameters.

    :raises ValueError: the row asks for log probabilities that the dataset has no column for.
    """
    for name in LOGPROBS:
        if are_asked(sampling, name) and not are_asked(of_job, name):
            raise ValueError(
                f"{name}: the dataset has a column for it only where the job asks for it; set it in "
                "sampling, too"
            )
