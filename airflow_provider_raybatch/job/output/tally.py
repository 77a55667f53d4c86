# SPDX-License-Identifier: Apache-2.0
"""What the report shows of the rows, counted while ranges are published; memory stays flat.

Samples are the rows of the lowest ranks. A rank is the fraction of the ordinal's multiple of the golden
ratio, so any stretch of rows has low ranks, evenly spread: the choice needs no second pass, and repeats.
"""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_raybatch.contract.arguments.tools import TOOL_CALLS_COLUMN
from airflow_provider_raybatch.contract.report import FailedExample, Sample, SampleAnswer, StepAnswers
from airflow_provider_raybatch.contract.text import plain_reason
from airflow_provider_raybatch.job.failures.diagnosis import public_text
from airflow_provider_raybatch.job.failures.public_reasons import kind_of_reason
from airflow_provider_raybatch.job.input.chunk_rows import BadRow
from airflow_provider_raybatch.job.input.prompt_values import mark
from airflow_provider_raybatch.job.input.reader import parquet_rows
from airflow_provider_raybatch.job.output.distributions import Answers, Lengths, answers_in, are_chosen
from airflow_provider_raybatch.job.output.rows import (
    MOST_COLUMNS,
    failed_request_text,
    fit_to,
    request_text,
    response_text,
    row_text,
    row_values,
    text_of,
)
from airflow_provider_raybatch.job.parts.part import inputs_of
from airflow_provider_raybatch.job.request.render import needed_columns, render_all
from airflow_provider_raybatch.job.row import Request
from airflow_provider_raybatch.job.steps.columns import rows_of_step
from airflow_provider_raybatch.job.tasks.base import Task

EXAMPLES = 3
"""Failed rows of each step."""
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_LONGEST_ID = 200
_MOST_VALUES = 64 * 1024
"""Bytes of a sample's row that travel, for a user's function to make its request."""

Shown = TypeVar("Shown", Sample, FailedExample)


@dataclass(frozen=True)
class Wanted:
    """How much of a range's rows to show.

    :param samples: good rows of the whole dataset; 0 for no content at all.
    :param of_range: at most so many of them from one range.
    """

    samples: int
    of_range: int

    @classmethod
    def of(cls, samples: int, ranges: int) -> Wanted:
        """For so many ranges of about the same size; if rows of many failed, some samples may be missing."""
        return cls(samples, min(samples, -(-4 * samples // max(1, ranges)) + 1))


@dataclass
class CountedAnswers:
    """What was counted of the answers to one step; a job that asks one question has one, without a name."""

    step: str | None
    answers: Answers
    prompts: Lengths = field(default_factory=Lengths)
    outputs: Lengths = field(default_factory=Lengths)
    finish_reasons: Counter[str] = field(default_factory=Counter)

    @classmethod
    def of(cls, task: Task) -> CountedAnswers:
        """Nothing yet of a step."""
        return cls(_step(task), Answers(are_chosen(task.spec)))

    def add(self, good: pa.Table, task: Task, has_content: bool) -> None:
        """Count good rows; those that the step left out have no output."""
        if good["output"].null_count:
            good = good.filter(good["output"].is_valid())
        if not good.num_rows:
            return
        for lengths, name in ((self.prompts, "input_tokens"), (self.outputs, "output_tokens")):
            if _has(task, name):
                column = pc.fill_null(pc.struct_field(good["output"], name), 0)
                lengths.add(column.to_numpy().astype(np.int64))
        self.answers.add(answers_in(good, task) if has_content else None)
        if self.step is not None:  # the manifest has those of one question
            self.finish_reasons.update(task.totals(good["output"]).finish_reasons)

    def merge(self, other: CountedAnswers) -> None:
        """Add what `other` has counted of the same step."""
        self.prompts.merge(other.prompts)
        self.outputs.merge(other.outputs)
        self.answers.merge(other.answers)
        self.finish_reasons += other.finish_reasons

    @property
    def told(self) -> StepAnswers:
        """The same as the report has it."""
        return StepAnswers(
            step=self.step,
            finish_reasons=dict(self.finish_reasons),
            prompt_tokens=self.prompts.bins,
            output_tokens=self.outputs.bins,
            answers=self.answers.few,
        )


@dataclass
class Tally:
    """What was counted in one range, or in many.

    :param questions: of good rows, by question.
    :param examples: of failed rows, by step.
    :param values: rows of samples whose request only a user's function makes, by ordinal.
    :param flaw: why something of it is missing.
    """

    questions: list[CountedAnswers] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    examples: dict[str, list[FailedExample]] = field(default_factory=dict)
    values: dict[int, dict[str, Any]] = field(default_factory=dict)
    flaw: str | None = None

    def add(self, other: Tally, wanted: Wanted) -> None:
        """Take over what a range has."""
        try:
            self._take(other, wanted)
        except Exception as error:  # the dataset matters more
            self.flaw = self.flaw or _flaw(error, wanted)

    def _take(self, other: Tally, wanted: Wanted) -> None:
        self.flaw = self.flaw or other.flaw
        for mine, theirs in zip(self.questions, other.questions, strict=False):  # one may have a flaw
            mine.merge(theirs)
        self.questions = self.questions or other.questions
        self.samples = lowest([*self.samples, *other.samples], wanted.samples)
        self.values |= other.values
        kept = {one.ordinal for one in self.samples}
        self.values = {ordinal: row for ordinal, row in self.values.items() if ordinal in kept}
        for step, found in other.examples.items():
            self.examples[step] = telling([*self.examples.get(step, []), *found])


def tally_of(good: pa.Table, bad: pa.Table, tasks: Sequence[Task], wanted: Wanted) -> Tally:
    """Count rows of parts.

    :param good: those of the dataset, and `bad` the failed ones.
    :param tasks: of all steps; rows are those of the last one.
    """
    questions = [CountedAnswers.of(task) for task in tasks]
    samples, examples, values, flaw = list[Sample](), dict[str, list[FailedExample]](), dict[int, Any](), None
    try:
        if good.num_rows:
            for counted, task, rows in zip(questions, tasks, _by_step(good, tasks), strict=True):
                counted.add(rows, task, has_content=bool(wanted.samples))
        if wanted.samples:
            samples = samples_of(good, tasks, wanted.of_range, values)
            examples = examples_of(bad)
    except Exception as error:  # the dataset matters more
        flaw = _flaw(error, wanted)
    return Tally(questions, samples, examples, values, flaw)


def _flaw(error: Exception, wanted: Wanted) -> str:
    return fit_to(500, plain_reason(error)) if wanted.samples else public_text(error)


def _step(task: Task) -> str | None:
    return task.spec.step_name or None


def _by_step(good: pa.Table, tasks: Sequence[Task]) -> list[pa.Table]:
    return [*(rows_of_step(task, good) for task in tasks[:-1]), good]


def _ranks(ordinals: npt.NDArray[Any]) -> npt.NDArray[np.uint64]:
    ranks: npt.NDArray[np.uint64] = ordinals.astype(np.uint64) * _GOLDEN
    return ranks


def _by_rank(shown: Sequence[Shown]) -> list[Shown]:
    ranks = _ranks(np.array([one.ordinal for one in shown], np.uint64))
    return [shown[place] for place in np.argsort(ranks, kind="stable")]


def lowest(shown: Sequence[Shown], most: int) -> list[Shown]:
    """Those of the lowest ranks, in the order of the input."""
    return sorted(_by_rank(shown)[:most], key=lambda one: one.ordinal)


def telling(found: Sequence[FailedExample]) -> list[FailedExample]:
    """A few failed rows, with different reasons where there are any, in the order of the input."""
    ranked = _by_rank(found)
    first: dict[str, FailedExample] = {}
    for one in ranked:
        first.setdefault(kind_of_reason(one.reason), one)
    chosen = [*first.values(), *(one for one in ranked if one not in first.values())][:EXAMPLES]
    return sorted(chosen, key=lambda one: one.ordinal)


def _lowest_rows(table: pa.Table, most: int) -> pa.Table:
    ranks = _ranks(table["ordinal"].to_numpy())
    places = np.sort(np.argsort(ranks, kind="stable")[:most])
    # Arrow's `take` would copy the whole table first, which has many pieces.
    return pa.concat_tables([table.slice(place, 1) for place in places.tolist()] or [table.slice(0, 0)])


def samples_of(
    good: pa.Table, tasks: Sequence[Task], most: int, values: dict[int, dict[str, Any]]
) -> list[Sample]:
    """A few good rows; `values` gets the rows that a user's function must see. See :func:`tally_of`."""
    if not good.num_rows:
        return []
    rows = _lowest_rows(good, most)
    by_step = [_answers(one, task, values) for one, task in zip(_by_step(rows, tasks), tasks, strict=True)]
    keys = zip(rows["ordinal"].to_pylist(), rows["id"].to_pylist(), _row_texts(rows, tasks[-1]), strict=True)
    made = []
    for (ordinal, row_id, row), answers in zip(keys, zip(*by_step, strict=True), strict=True):
        asked = [one for one in answers if one is not None]
        own = {"steps": asked} if _step(tasks[-1]) is not None or not asked else vars(asked[0])
        made.append(Sample(ordinal=ordinal, id=_id(row_id), row=row, **own))
    return made


def _answers(rows: pa.Table, task: Task, values: dict[int, dict[str, Any]]) -> list[SampleAnswer | None]:
    """What each row was asked and got; ``None`` where its step has left it out."""
    requests = _requests(rows, task, values)
    outputs = rows["output"]
    # The vectors of a row with several texts are one list, of no fixed size.
    has_several = task.chunk_index or task.spec.asks_by_lines
    first = pc.struct_field(outputs, [0]) if has_several else task.published(outputs)[0]
    names = [name for name in (*task.sample_fields, TOOL_CALLS_COLUMN) if _has(task, name)]
    rest = pa.table({name: pc.struct_field(outputs, name) for name in names}).to_pylist() if names else None
    responses = row_values(pa.table({"first": first}))
    made: list[SampleAnswer | None] = []
    for place, is_asked in enumerate(outputs.is_valid().to_pylist()):
        more = dict(rest[place]) if rest else {}
        calls = more.pop(TOOL_CALLS_COLUMN, None)
        response = response_text(responses[place]["first"], calls)
        answer = SampleAnswer(step=_step(task), request=requests[place], response=response, **more)
        made.append(answer if is_asked else None)
    return made


def _has(task: Task, name: str) -> bool:
    return bool(task.output_type.get_field_index(name) >= 0)


def examples_of(bad: pa.Table) -> dict[str, list[FailedExample]]:
    """A few failed rows of each step.

    :param bad: failed rows of parts.
    """
    found: dict[str, list[FailedExample]] = {}
    if not bad.num_rows:
        return found
    of_row = pc.struct_field(bad["failure"], "step")
    for step in pc.unique(of_row.drop_null()).to_pylist():
        rows = _lowest_rows(bad.filter(pc.equal(of_row, step)), 4 * EXAMPLES)
        shown = _row_texts(rows, None)
        answers: list[Any] = [None] * rows.num_rows
        if "output" in rows.schema.names:
            answers = pc.struct_field(rows["output"], [0]).to_pylist()
        each = zip(*(rows[name].to_pylist() for name in ("ordinal", "id", "failure")), strict=True)
        found[step] = telling([
            FailedExample(
                ordinal=ordinal,
                id=_id(row_id),
                reason=text_of(failure["reason"]),
                request=failed_request_text(failure["request"]) if failure["request"] else None,
                response=response_text(answers[place]),
                row=shown[place],
            )
            for place, (ordinal, row_id, failure) in enumerate(each)
        ])
    return found


def _id(value: str | None) -> str | None:
    return None if value is None else fit_to(_LONGEST_ID, value)


def _row_texts(rows: pa.Table, task: Task | None) -> list[str | None]:
    """Input columns; of very many those that the request is made of, then the first others."""
    inputs = inputs_of(rows)
    if not inputs:
        return [None] * rows.num_rows
    names = list(inputs)
    if len(names) > MOST_COLUMNS:
        needed = (needed_columns(task.spec) if task is not None else None) or []
        names = list(dict.fromkeys([*(one for one in needed if one in inputs), *names]))[:MOST_COLUMNS]
    found = row_values(pa.table([inputs[name] for name in names], names=names))
    return [row_text(row, len(inputs)) for row in found]


def _requests(rows: pa.Table, task: Task, values: dict[int, dict[str, Any]]) -> list[str | None]:
    """The requests, rendered again."""
    inputs = inputs_of(rows)
    needed = needed_columns(task.spec)
    names = [name for name in inputs if needed is None or name in needed]
    if not names:
        # A prompt without placeholders may be of a row by its images, which parts lack.
        return rendered([{}] * rows.num_rows, task) if task.spec.images else [None] * rows.num_rows
    table = pa.table([inputs[name] for name in names], names=names)
    found = parquet_rows(table)
    mark(found, table.schema, task.spec.text_columns())
    if task.spec.prompt_function is None:
        return rendered(found, task)
    for ordinal, row in zip(rows["ordinal"].to_pylist(), found, strict=True):
        if not isinstance(row, BadRow) and len(pickle.dumps(row)) <= _MOST_VALUES:
            values[ordinal] = row
    return [None] * rows.num_rows


def rendered(rows: Sequence[Mapping[str, Any] | BadRow], task: Task) -> list[str | None]:
    """The requests of rows as texts; ``None`` for one that can't be made of the dataset's values."""
    made = render_all(task.requests(reads_images=False), rows)
    return [request_text(one) if isinstance(one, Request) else None for one in made]
