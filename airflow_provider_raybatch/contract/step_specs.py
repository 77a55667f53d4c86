# SPDX-License-Identifier: Apache-2.0
"""What a spec that asks in steps says of each step: adapters, columns, and completions that it asks about."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, NamedTuple

from airflow_provider_raybatch.contract.arguments.engine import revision_of
from airflow_provider_raybatch.contract.arguments.response_schema import (
    kind_of_values,
    properties_of,
)
from airflow_provider_raybatch.contract.arguments.steps import AskedStep, StepArguments


def fields_of(asked: AskedStep, sampling: Mapping[str, Any]) -> dict[str, Any]:
    """What the spec of one step has in place of the whole spec's fields.

    :param sampling: of the whole spec.
    """
    step = asked.step
    own = step.model_dump(exclude={"name", "each", "best", "on_rejected", "when"})
    own |= {"sampling": {**sampling, **step.sampling}, "output_prefix": f"{step.name}_"}
    own["asked_step"] = asked
    for name in ("adapter", "sampling_column"):
        if own[name] is None:
            del own[name]  # that of the whole spec counts
    if step.tools is None:
        own["tool_call_parser"] = None  # its requests are those of a job without tools
    if step.adapter is not None:  # which no row chooses
        own |= {"adapters": {}, "adapter_column": None}
    return own if asked.is_last else {**own, "postprocess": None}


def adapters_of(steps: Sequence[StepArguments], adapter: str | None) -> dict[str, str]:
    """Where the adapters of all steps lie, by name.

    :param adapter: of steps without one of their own.
    """
    given = dict.fromkeys(step.adapter or adapter for step in steps)
    return {revision_of(location)[0]: location for location in given if location is not None}


def check_adapters(steps: Sequence[StepArguments], adapter: str | None, adapters: Mapping[str, str]) -> None:
    """Refuse one adapter in two versions: an engine has each under its name.

    :param adapter: of steps without one of their own.
    :param adapters: among which rows choose, by name.
    :raises ValueError: one sentence, with the name of the step.
    """
    names = dict(adapters)
    for step in steps:
        if (location := step.adapter or adapter) is not None:
            known = names.setdefault(revision_of(location)[0], location)
            if known != location:
                raise ValueError(
                    f"steps: {step.name}: adapter: {location!r} and {known!r} are two versions of one "
                    "adapter, and an engine has one; give all steps the same"
                )


def with_adapters(
    steps: Sequence[StepArguments], adapter: str | None, locations: Mapping[str, str]
) -> dict[str, Any]:
    """The fields of a spec whose steps have their adapters at other places.

    :param locations: by name.
    """

    def moved(location: str | None) -> str | None:
        return None if location is None else locations.get(revision_of(location)[0], location)

    own = [step.model_copy(update={"adapter": moved(step.adapter)}) for step in steps]
    return {"steps": own, "adapter": moved(adapter)}


class StepColumns(NamedTuple):
    """The columns of one step.

    :param made: those that it may make, in lower case.
    :param read: those that its request reads.
    :param of_source: those among them that no step makes, each with the argument that names it.
    """

    step: StepArguments
    made: AbstractSet[str]
    read: Sequence[str]
    of_source: Mapping[str, str]


def check_columns(steps: Sequence[StepColumns]) -> None:
    """Refuse a step that reads what is not there yet, or makes a column that an earlier one has made.

    :raises ValueError: one sentence, with the name of the step.
    """
    made: set[str] = set()
    for number, (step, own, read, of_source) in enumerate(steps):
        where = f"steps: {step.name}"
        later = set[str]().union(*(one.made for one in steps[number:])) - made
        for column, argument in of_source.items():
            if column.lower() in made | later:
                raise ValueError(
                    f"{where}: {argument}: {column!r} is a column that a step makes; name one of the source"
                )
        for column in (*read, *(condition[0] for condition in step.when)):
            if column.lower() in later:
                raise ValueError(
                    f"{where}: it reads {column!r}, a column that this step or a later one makes; change the "
                    "order of the steps"
                )
        if double := made & own:
            raise ValueError(
                f"{where}: its column {min(double)!r} is that of an earlier step, too; rename one step"
            )
        made |= own


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
    properties = {} if schema is None else properties_of(schema)
    if name not in properties or kind_of_values(properties[name], schema) not in _RANKED:
        raise ValueError(
            f"best: {name!r} is not a property with an order; give response_format a JSON schema in which it "
            "has the type 'integer', 'number' or 'boolean'"
        )
