# SPDX-License-Identifier: Apache-2.0
"""What a spec that asks in steps says of each step: adapters, and the columns that it makes and reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, NamedTuple

from airflow_provider_raybatch.contract.arguments.model import revision_of
from airflow_provider_raybatch.contract.arguments.steps import REJECTED_COLUMN, AskedStep, StepArguments


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
            for earlier in steps[:number]:
                name = f"{earlier.step.name}_{REJECTED_COLUMN}"
                if column.lower() == name.lower() and not earlier.step.goes_on_rejected:
                    raise ValueError(
                        f"{where}: it reads {column!r}, which step {earlier.step.name!r} makes with "
                        "on_rejected='continue' alone; set it there"
                    )
        if double := made & own:
            raise ValueError(
                f"{where}: its column {min(double)!r} is that of an earlier step, too; rename one step"
            )
        made |= own
