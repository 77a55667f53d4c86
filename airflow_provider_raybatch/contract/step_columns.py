# SPDX-License-Identifier: Apache-2.0
"""Which columns each step makes and reads: a step reads those of the source and of earlier steps alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import NamedTuple

from airflow_provider_raybatch.contract.arguments.steps import REJECTED_COLUMN, StepArguments


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
