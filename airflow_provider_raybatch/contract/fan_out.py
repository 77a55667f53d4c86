# SPDX-License-Identifier: Apache-2.0
"""Steps that ask about each completion of an earlier one, and those that rank them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from airflow_provider_raybatch.contract.arguments.response_schema import (
    followed,
    kind_of_values,
    properties_of,
)
from airflow_provider_raybatch.contract.arguments.steps import AskedStep, StepArguments
from airflow_provider_raybatch.contract.base import shown

_RANKED = frozenset({"a number", "true or false"})
"""Kinds of values with an order."""


class FanOut(NamedTuple):
    """What decides whether a step may ask about each completion of another one, or be asked about.

    :param has_several: whether it gives several completions.
    :param schema: of its responses.
    """

    asked: AskedStep
    has_several: bool
    sampling: Mapping[str, Any]
    schema: Mapping[str, Any] | None

    @property
    def step(self) -> StepArguments:
        """Its arguments."""
        return self.asked.step


def check_fan_out(steps: Sequence[FanOut]) -> None:
    """Check `each` and `best` of all steps.

    :raises ValueError: one sentence, with the name of the step.
    """
    for number, one in enumerate(steps):
        try:
            if one.step.each is not None:
                _check_each(one, one.step.each, {earlier.step.name: earlier for earlier in steps[:number]})
            if one.step.best is not None:
                _check_best(one.step.best, one.schema)
        except ValueError as error:
            raise ValueError(f"steps: {one.step.name}: {error}") from None


def _check_each(one: FanOut, name: str, earlier: Mapping[str, FanOut]) -> None:
    if name not in earlier:
        remedy = f"name one of {', '.join(map(repr, earlier))}" if earlier else "there is none; remove each"
        raise ValueError(f"each: {name!r} is not the name of an earlier step; {remedy}")
    of = earlier[name]
    if not of.has_several:
        raise ValueError(
            f"each: step {name!r} gives one completion a row; set its sampling={{'n': ...}} to 2 or more, or "
            "remove each"
        )
    if of.step.when and not one.step.when:
        raise ValueError(
            f"each: step {name!r} has a condition, and this one has none, so it would ask about rows without "
            f"completions; give it when=('{name}_response', 'is not null')"
        )
    # Their completions stand beside each other, and a ranking moves all of them: so each list begins with
    # what the next one is about.
    last = next((one for one in reversed(one.asked.family) if earlier[one].step.each is not None), None)
    known = (name,) if last is None else (earlier[last].step.each, last)
    if name not in known:
        raise ValueError(
            f"each: step {last!r} asks about {known[0]!r} before, and not every completion of {name!r} has "
            f"an answer there; ask about {known[0]!r} or {last!r}, or put this step before {last!r}"
        )
    if (n := one.sampling.get("n", 1)) != 1:
        raise ValueError(
            f"sampling: n is {n}, and a step with each asks once about each completion; set n to 1 there"
        )
    if one.sampling.get("prompt_logprobs") is not None:
        raise ValueError(
            "sampling: prompt_logprobs: a row has one column for them, and a step with each has several "
            "prompts; leave them out there"
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
    if kind_of_values(properties[name], schema) not in _RANKED:
        part, _ = followed(properties[name], schema)
        raise ValueError(
            f"best: {name!r} is {shown(part)}, whose values have no order; give it the type 'integer', "
            "'number' or 'boolean'"
        )
