# SPDX-License-Identifier: Apache-2.0
"""Several questions about each row, on one engine: each may read the answers to those before it."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from decimal import Decimal
from numbers import Number
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from airflow_provider_raybatch.contract.arguments.engine import AdapterLocation
from airflow_provider_raybatch.contract.arguments.images import ImageColumns
from airflow_provider_raybatch.contract.arguments.prompt import Message
from airflow_provider_raybatch.contract.arguments.tools import OfferedTools
from airflow_provider_raybatch.contract.base import ContractModel, SpecPart, is_import_path, shown
from airflow_provider_raybatch.contract.text import count_of

NULL_OPERATORS = ("is null", "is not null")
LIST_OPERATORS = ("in", "not in")
OPERATORS = ("==", "!=", "<", "<=", ">", ">=", *LIST_OPERATORS, *NULL_OPERATORS)
"""As in the filters of pyarrow and pandas."""


def check_condition(condition: Any) -> None:
    """Refuse what is not a condition: ``(column, operator)`` or ``(column, operator, value)``.

    :raises ValueError: one sentence, with the condition.
    """
    parts = condition if isinstance(condition, (list, tuple)) else ()
    operator = str(parts[1]) if len(parts) in (2, 3) else ""
    fits = (
        operator in OPERATORS
        and isinstance(parts[0], str)
        and parts[0] != ""
        and (operator in NULL_OPERATORS) is (len(parts) == 2)
        and (operator in LIST_OPERATORS) is isinstance(parts[-1], (list, tuple))
    )
    if not fits:
        raise ValueError(
            f"a condition is (column, operator, value), or (column, 'is null'), with one of "
            f"{', '.join(OPERATORS)}, and a list of values for 'in', but it is {shown(_plain(condition))}"
        )
    if operator not in NULL_OPERATORS:
        for one in parts[2] if operator in LIST_OPERATORS else [parts[2]]:
            _check_value(one, operator)


def holds(value: Any, operator: str, other: Any = None) -> bool:
    """Whether `value` fulfils ``operator other``, a checked condition.

    A null fulfils ``is null`` alone. A value of another kind than `other` fulfils nothing: text, numbers and
    booleans are never equal, nor unequal. A decimal equals the number that is written alike, such as 0.1.
    """
    if operator in NULL_OPERATORS:
        return (value is None) is (operator == "is null")
    if value is None:
        return False
    if operator in LIST_OPERATORS:
        alike = [_as_decimal(one, value) for one in other if _kind(one) == _kind(value)]
        if other and not alike:
            return False
        return (value in alike) is (operator == "in")
    if _kind(value) != _kind(other):
        return False
    other = _as_decimal(other, value)
    if operator in ("==", "!="):
        return bool(value == other) is (operator == "==")
    if operator == "<":
        return bool(value < other)
    if operator == "<=":
        return bool(value <= other)
    return bool(value > other if operator == ">" else value >= other)


def _check_value(value: Any, operator: str) -> None:
    if value is None:
        raise ValueError(f"{operator!r} is never true of None; use 'is null' or 'is not null'")
    if not isinstance(value, (str, bool, int, float)) or (
        isinstance(value, float) and not math.isfinite(value)
    ):
        raise ValueError(
            f"{shown(value)} is not text, a finite number, true or false; compare with one of these"
        )


def _as_decimal(other: Any, value: Any) -> Any:
    """The number that a decimal is compared with: a float of the same digits is another number."""
    is_float = isinstance(other, float) and isinstance(value, Decimal)
    return Decimal(repr(other)) if is_float else other


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    return "number" if isinstance(value, Number) else type(value).__name__


def _plain(value: Any) -> Any:
    """As it is written in a DAG: a condition from JSON is a list."""
    return tuple(value) if isinstance(value, list) else value


_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,39}")
REJECTED_COLUMN = "rejected"
"""Why a response is not what was asked for, where the row goes on all the same."""
CANDIDATE_COLUMN = "candidate"
"""Which of the completions that a step asks about this one is of."""


class StepArguments(OfferedTools):
    """One question about each row, with the tools that the model may call in its answer.

    :param name: begins the names of its columns.
    :param images: columns of images that it shows, as the operator's `images`.
    :param each: an earlier step, about each of whose completions this one asks.
    :param best: a property of the response's schema: the larger it is, the better the completion that it is
        about.
    :param adapter: where the adapter (LoRA) lies that answers; by default the job's own.
    :param sampling: merged over the job's own, and `sampling_column` in place of the job's own.
    :param on_rejected: whether a row fails whose response is not what was asked for, or goes on with it.
    :param when: conditions on the row and on earlier answers, which must all hold; else the step is skipped.
    """

    name: str
    prompt: str | None = Field(default=None, min_length=1)
    system_prompt: str | None = None
    messages: list[Message] | None = Field(default=None, min_length=1)
    images: ImageColumns = Field(default_factory=list)
    each: str | None = None
    best: str | None = None
    adapter: AdapterLocation | None = None
    sampling: dict[str, Any] = Field(default_factory=dict)
    sampling_column: str | None = Field(default=None, min_length=1)
    response_format: str | dict[str, Any] = "text"
    on_truncated: Literal["keep", "error"] = "keep"
    on_rejected: Literal["fail", "continue"] = "fail"
    when: list[tuple[str, str] | tuple[str, str, Any]] = Field(default_factory=list)

    @field_validator("name")
    @classmethod
    def _begins_columns(cls, name: str) -> str:
        if not _NAME.fullmatch(name):
            raise ValueError(
                f"it begins the names of columns, so it must be a letter and up to 39 letters, digits or "
                f"'_', but it is {shown(name)}"
            )
        return name

    @field_validator("response_format", mode="before")
    @classmethod
    def _schema_is_given(cls, value: Any) -> Any:
        if not isinstance(value, (str, Mapping)):
            raise ValueError(
                "it must be 'text', 'json_object' or a JSON schema (such as Model.model_json_schema()), but "
                f"it is {shown(value)}"
            )
        if is_import_path(value):
            raise ValueError(
                f"the source of {value!r} does not travel with a step; give its schema, "
                f"{str(value).partition(':')[2]}.model_json_schema()"
            )
        return value

    @field_validator("when", mode="before")
    @classmethod
    def _conditions(cls, value: Any) -> Any:
        is_one = isinstance(value, (list, tuple)) and bool(value) and isinstance(value[0], str)
        conditions = [value] if is_one else value
        if not isinstance(conditions, (list, tuple)):
            raise ValueError(f"it must be a list of conditions, but it is {shown(value)}")
        for condition in conditions:
            check_condition(condition)
        return list(conditions)

    @model_validator(mode="after")
    def _one_prompt(self) -> StepArguments:
        if (self.prompt is None) is (self.messages is None):
            what = "none is given" if self.prompt is None else "prompt and messages are given together"
            raise ValueError(f"prompt: exactly one of prompt and messages is needed, but {what}")
        return self

    @model_validator(mode="after")
    def _best_is_of_several(self) -> StepArguments:
        if self.best is not None and self.each is None:
            raise ValueError(
                f"best: {self.best!r} ranks the completions that a step asks about; name their step in each"
            )
        return self

    @model_validator(mode="after")
    def _images_are_of_the_row(self) -> StepArguments:
        if self.images and self.each is not None:
            raise ValueError(
                f"images: a step that asks about each completion (each={self.each!r}) shows none; leave them "
                "out, or ask about the row without each"
            )
        return self

    @property
    def goes_on_rejected(self) -> bool:
        """Whether a row goes on with a response that is not what was asked for."""
        return self.on_rejected == "continue"

    def is_asked(self, row: Mapping[str, Any]) -> bool:
        """Whether this row, with the earlier answers, is asked: see :func:`holds`."""
        return all(holds(row.get(one[0]), *one[1:]) for one in self.when)

    @property
    def condition_columns(self) -> list[str]:
        """Columns that its conditions are about."""
        return [condition[0] for condition in self.when]

    @property
    def decides(self) -> list[Any]:
        """What decides what becomes of a row, besides its request."""
        return [self.name, self.on_rejected, self.when, self.each, self.best]


class AskedStep(ContractModel):
    """Which of a job's steps a spec is of; filled in where a spec is split into its steps.

    :param steps: all of them.
    :param number: of this one, from 0.
    :param earlier_columns: that the steps before it make.
    """

    steps: list[StepArguments]
    number: int
    earlier_columns: list[str] = Field(default_factory=list)

    @property
    def step(self) -> StepArguments:
        """This one."""
        return self.steps[self.number]

    @property
    def earlier(self) -> list[str]:
        """Names of the steps before it."""
        return [step.name for step in self.steps[: self.number]]

    @property
    def family(self) -> list[str]:
        """The earlier steps whose completions are one about the other, as this step's are about theirs."""
        root, roots = self._roots[-1], self._roots[:-1]
        return [name for name, of in zip(self.earlier, roots, strict=True) if of == root]

    @property
    def _roots(self) -> list[str]:
        """Of each step up to this one, the step whose samples its completions go back to."""
        roots: dict[str, str] = {}
        for step in self.steps[: self.number + 1]:
            roots[step.name] = step.name if step.each is None else roots.get(step.each, step.each)
        return list(roots.values())

    def optional_columns(self, has_several: bool) -> list[str]:
        """Columns that only some steps have.

        :param has_several: whether the step gives several completions.
        """
        if not self.step.name:
            return []
        rejected = [REJECTED_COLUMN] if has_several or self.step.goes_on_rejected else []
        return [*rejected, *([CANDIDATE_COLUMN] if self.step.each is not None else [])]

    @property
    def is_last(self) -> bool:
        """Whether no step follows, so that its answers complete a row."""
        return self.number == len(self.steps) - 1


_ONE_QUESTION = AskedStep.model_construct(steps=[StepArguments.model_construct(name="")], number=0)
"""The one step of a job that asks one question; it has no name, and so its columns have none either."""


class StepsArguments(SpecPart):
    """Several questions about each row.

    :param steps: in the order in which they are asked; ``None`` for the one question of the other arguments.
    :param asked_step: which of them this spec is of.
    """

    steps: list[StepArguments] | None = Field(default=None, min_length=1)
    asked_step: AskedStep | None = None

    @model_validator(mode="after")
    def _names_differ(self) -> StepsArguments:
        if self.steps is None:
            return self
        names = [step.name.lower() for step in self.steps]
        double = next((name for name in names if names.count(name) > 1), None)
        if double is not None:
            raise ValueError(
                f"steps: {count_of(names.count(double), 'step')} have the name {double!r}, and each begins "
                "the names of its own columns; rename one"
            )
        return self

    @property
    def question(self) -> AskedStep:
        """The step that this spec is of."""
        return self.asked_step or _ONE_QUESTION

    @property
    def step_name(self) -> str:
        """Name of the step that this spec is of; empty without steps."""
        return self.question.step.name

    @property
    def step_prefix(self) -> str:
        """Begins a message about an argument of this step; empty without steps."""
        return f"steps: {self.step_name}: " if self.step_name else ""

    @property
    def is_later_step(self) -> bool:
        """Whether its requests may be about answers of steps before."""
        return self.question.number > 0

    @property
    def condition_columns(self) -> list[str]:
        """Columns that decide whether a row is asked."""
        return self.question.step.condition_columns

    def leaves_out(self, row: object) -> bool:
        """Whether a row does not fulfil the conditions of its step; one that can't be read fails instead."""
        return isinstance(row, dict) and not self.question.step.is_asked(row)

    @property
    def asks_in_steps(self) -> bool:
        """Whether the steps have the prompts."""
        return self.steps is not None
