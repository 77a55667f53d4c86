# SPDX-License-Identifier: Apache-2.0
"""Steps that ask about each completion of an earlier one, and those that rank them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from airflow_provider_raybatch.contract.arguments.response_schema import followed, properties_of
from airflow_provider_raybatch.contract.arguments.steps import StepArguments
from airflow_provider_raybatch.contract.base import shown

_RANKED = frozenset({"integer", "number", "boolean"})
"""Types of properties with an order."""
FanOut = tuple[StepArguments, bool, Mapping[str, Any], "Mapping[str, Any] | None"]
"""A step, whether it gives several completions, its sampling, and its response's schema."""


def check_fan_out(steps: Sequence[FanOut]) -> None:
    """Check `each` and `best` of all steps.

    :raises ValueError: one sentence, with the name of the step.
    """
    several: dict[str, bool] = {}
    for step, has_several, sampling, schema in steps:
        try:
            if step.each is not None:
                _check_each(step.each, several, sampling)
            if step.best is not None:
                _check_best(step.best, schema)
        except ValueError as error:
            raise ValueError(f"steps: {step.name}: {error}") from None
        several[step.name] = has_several


def _check_each(name: str, several: Mapping[str, bool], sampling: Mapping[str, Any]) -> None:
    if name not in several:
        remedy = f"name one of {', '.join(map(repr, several))}" if several else "there is none; remove each"
        raise ValueError(f"each: {name!r} is not the name of an earlier step; {remedy}")
    if not several[name]:
        raise ValueError(
            f"each: step {name!r} gives one completion a row; set its sampling={{'n': ...}} to 2 or more, or "
            "remove each"
        )
    if (n := sampling.get("n", 1)) != 1:
        raise ValueError(
            f"sampling: n is {n}, and a step with each asks once about each completion; set n to 1 there"
        )


def _check_best(name: str, schema: Mapping[str, Any] | None) -> None:
    if schema is None:
        raise ValueError(
            f"best: {name!r} is read in the response, which is text; give a JSON schema with this property "
            "in response_format"
        )
    properties = properties_of(schema)
    if name not in properties:
        raise ValueError(
            f"best: {name!r} is not a property of response_format; name one of {shown(sorted(properties))}"
        )
    part, _ = followed(properties[name], schema)
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind not in _RANKED:
        raise ValueError(
            f"best: {name!r} has the type {shown(kind)}, which has no order; give it 'integer', 'number' or "
            "'boolean'"
        )
