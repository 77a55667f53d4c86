# SPDX-License-Identifier: Apache-2.0
"""A row's way from step to step: conditions leave steps out, and answers rank the completions before.

A row's response is its first completion. So once a judge has ranked the drafts, the row has the best draft,
and the columns of completions are in another order.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_raybatch.contract.arguments.steps import CANDIDATE_COLUMN, REJECTED_COLUMN
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.job.input.chunk_rows import ChunkRows
from airflow_provider_raybatch.job.input.json_types import Kind
from airflow_provider_raybatch.job.input.table import one_array
from airflow_provider_raybatch.job.request.render import Render
from airflow_provider_raybatch.job.request.row_text import is_blank_row
from airflow_provider_raybatch.job.row import RenderError, Request, Response
from airflow_provider_raybatch.job.steps.columns import columns_of, null_columns
from airflow_provider_raybatch.job.steps.known import KnownRows
from airflow_provider_raybatch.job.tasks.base import Task
from airflow_provider_raybatch.job.tasks.typed_columns import column_kinds, values_of
from airflow_provider_raybatch.job.work import Job

_COMPLETIONS = "completions"
_OF_ALL = frozenset({"output_tokens"})
"""What a row has of all its completions, and not of the first."""
Order = Sequence[int]
"""Which completions of another step a row's answers are about, in the order of the answers."""


class Completions:
    """The completions of a row, each as if it were the only one.

    :param spec: of the step that gives them.
    """

    def __init__(self, spec: BatchInferenceSpec) -> None:
        schema = spec.response_schema
        self._prefix = spec.output_prefix
        self._kinds: Mapping[str, Kind] = {} if schema is None else column_kinds(schema)

    def places(self, row: Mapping[str, Any]) -> list[int]:
        """Of good completions; of all, where none is good; none where the step was not asked."""
        found = row.get(self._prefix + _COMPLETIONS) or ()
        good = [place for place, one in enumerate(found) if one[REJECTED_COLUMN] is None]
        return good or list(range(len(found)))

    def columns(self, row: Mapping[str, Any], place: int) -> dict[str, Any]:
        """The columns of the step in a row whose only completion is this one; none where there is none."""
        found = row.get(self._prefix + _COMPLETIONS) or ()
        if place >= len(found):
            return {}
        completion = found[place]
        own = {_of_row(name): value for name, value in completion.items() if name not in _OF_ALL}
        if self._kinds:
            bad = completion[REJECTED_COLUMN] is not None
            own |= dict.fromkeys(self._kinds) if bad else values_of(completion["text"], self._kinds)
        return {self._prefix + name: value for name, value in own.items()}


def _of_row(name: str) -> str:
    """The column of a row that has what its first completion has under this name."""
    return "response" if name == "text" else name


def order_of(result: object) -> Order:
    """Which completions the answers of a checked response are about; none of a failure."""
    if not isinstance(result, Response):
        return ()
    return [one.extra[CANDIDATE_COLUMN] for one in result.completions]


def orders_of(outputs: pa.StructArray) -> list[Order]:
    """As :func:`order_of`, of outputs."""
    found = pc.struct_field(outputs, _COMPLETIONS).to_pylist()
    return [[one[CANDIDATE_COLUMN] for one in some or ()] for some in found]


def reordered(outputs: pa.StructArray, orders: Sequence[Order]) -> pa.StructArray:
    """Outputs with their completions in another order, and what a row has of its first one.

    :param orders: of each row, the places of those that come first. A row without completions is null.
    """
    columns = dict(zip(outputs.type.names, outputs.flatten(), strict=True))
    lists = columns[_COMPLETIONS]
    sizes = pc.fill_null(pc.list_value_length(lists), 0).to_pylist()
    places: list[int] = []
    for start, size, order in zip(lists.offsets.to_pylist(), sizes, orders, strict=False):
        first = [place for place in order if place < size]
        places += [start + place for place in (*first, *sorted(set(range(size)).difference(first)))]
    there = pc.is_valid(lists)
    starts = [
        begin if known else None
        for begin, known in zip(accumulate(sizes, initial=0), there.to_pylist(), strict=False)
    ]
    offsets = pa.array([*starts, sum(sizes)], pa.int32())
    values = lists.values.take(pa.array(places, pa.int64()))
    ordered = pa.ListArray.from_arrays(offsets, values, type=lists.type)
    columns[_COMPLETIONS] = ordered
    firsts = pc.list_element(ordered.drop_null(), 0)
    # Not `replace_with_mask`, which takes no lists.
    own = pc.if_else(there, pc.subtract(pc.cumulative_sum(there.cast(pa.int64())), 1), None)
    for name, column in zip(firsts.type.names, firsts.flatten(), strict=True):
        if name not in _OF_ALL:
            columns[_of_row(name)] = column.take(own)
    return pa.StructArray.from_arrays(
        list(columns.values()), fields=list(outputs.type), mask=pc.invert(there)
    )


InChunk = tuple[ChunkRows, int]
"""A row as it was read, and its place there."""


@dataclass(frozen=True)
class Standing:
    """Where a row stands.

    :param rows: with the columns of all steps before, and `place` of the row in it.
    :param step: that asks it next; the number of steps where none does.
    """

    rows: ChunkRows
    place: int
    step: int


class Way:
    """The steps of a job.

    :param job: the last of them, which knows those before it.
    """

    def __init__(self, job: Job) -> None:
        self._tasks = job.tasks
        self._conditions = [
            step.spec.question.step if step.spec.step_name else None for step in job.questions
        ]
        self._texts = [_texts(step.spec) if step.spec.on_blank == "null" else () for step in job.questions]
        self._made = [frozenset(name.lower() for name in task.column_names) for task in self._tasks]

    def begin(
        self, rows: Sequence[InChunk], ordinals: Sequence[int], known: Sequence[KnownRows]
    ) -> list[Standing]:
        """Where rows stand that were just read.

        :param ordinals: of the rows.
        :param known: the answers that some of them have.
        """
        found: list[Standing | None] = [None] * len(rows)
        for one in known:
            places = np.flatnonzero(np.isin(ordinals, one.ordinals)).tolist()
            at = np.searchsorted(one.ordinals, [ordinals[place] for place in places])
            columns = one.columns.take(pa.array(at))
            self._set(found, places, self._after(one.step, [rows[place] for place in places], columns))
        places = [place for place, one in enumerate(found) if one is None]
        self._set(found, places, self._next(0, [rows[place] for place in places]))
        return [one for one in found if one is not None]

    def after(self, step: int, rows: Sequence[InChunk], outputs: pa.ChunkedArray) -> list[Standing]:
        """Where rows stand that a step has answered.

        :param outputs: of exactly these rows.
        """
        return self._after(step, rows, columns_of(self._tasks[step], outputs))

    def _after(self, step: int, rows: Sequence[InChunk], columns: pa.Table) -> list[Standing]:
        found: list[Standing | None] = [None] * len(rows)
        for places in by_chunk(rows):
            chunk = rows[places[0]][0]
            added = columns.take(pa.array(places))
            made = chunk.with_answers([rows[place][1] for place in places], added)
            self._set(found, places, self._next(step + 1, [(made, place) for place in range(len(places))]))
        return [one for one in found if one is not None]

    def _next(self, step: int, rows: Sequence[InChunk]) -> list[Standing]:
        """Where rows stand that have come to a step."""
        if step == len(self._tasks) or (condition := self._conditions[step]) is None:
            return [Standing(chunk, place, step) for chunk, place in rows]
        found: list[Standing | None] = [None] * len(rows)
        skipped = []
        for number, (chunk, place) in enumerate(rows):
            row = chunk.rows[place]
            # A late row of JSONL may have a column of the step; rendering it fails, which keeps its value.
            if (
                isinstance(row, dict)
                and (not condition.is_asked(row) or is_blank_row(row, self._texts[step]))
                and self._made[step].isdisjoint(map(str.lower, row))
            ):
                skipped.append(number)
            else:
                found[number] = Standing(chunk, place, step)
        left = [rows[number] for number in skipped]
        if step == len(self._tasks) - 1:
            self._set(found, skipped, [Standing(chunk, place, step + 1) for chunk, place in left])
        elif left:
            self._set(found, skipped, self._after(step, left, null_columns(self._tasks[step], len(left))))
        return [one for one in found if one is not None]

    @staticmethod
    def _set(found: list[Standing | None], places: Sequence[int], made: Sequence[Standing]) -> None:
        for place, one in zip(places, made, strict=True):
            found[place] = one


def _texts(spec: BatchInferenceSpec) -> Collection[str]:
    """Columns without which a step has nothing to ask about."""
    each = spec.question.step.each
    return spec.column_arguments() if each is None else [f"{each}_completions"]


def by_chunk(rows: Sequence[InChunk]) -> list[list[int]]:
    """Places of the rows of each `ChunkRows`."""
    found: dict[int, list[int]] = {}
    for number, (chunk, _) in enumerate(rows):
        found.setdefault(id(chunk), []).append(number)
    return list(found.values())


class Ranking:
    """What the answers to a step change in the columns of earlier ones.

    :param step: the step.
    """

    def __init__(self, step: Job) -> None:
        self._tasks = [one.task for one in step.family.values()]

    def by_responses(self, rows: Sequence[InChunk], results: Sequence[object]) -> Sequence[InChunk]:
        """Rows in the order of what the engine has answered.

        :param results: responses that were checked; others have no order.
        """
        return self._ranked(rows, [order_of(one) for one in results]) if self._tasks else rows

    def by_outputs(self, rows: Sequence[InChunk], outputs: pa.StructArray) -> Sequence[InChunk]:
        """Rows in the order of answers that exist already; see :meth:`by_responses`."""
        return self._ranked(rows, orders_of(outputs)) if self._tasks else rows

    def _ranked(self, rows: Sequence[InChunk], orders: Sequence[Order]) -> list[InChunk]:
        made = list(rows)
        moved = [place for place, order in enumerate(orders) if list(order) != list(range(len(order)))]
        for group in by_chunk([rows[place] for place in moved]):
            places = [moved[number] for number in group]
            chunk, at = rows[places[0]][0], [rows[place][1] for place in places]
            assert chunk.answers is not None  # of the steps in the family
            before = chunk.answers.take(pa.array(at, pa.int64()))
            order = [orders[place] for place in places]
            columns: dict[str, pa.ChunkedArray] = {}
            for task in self._tasks:
                table = columns_of(task, pa.chunked_array([reordered(_outputs(task, before), order)]))
                columns |= zip(table.column_names, table.columns, strict=True)
            ranked = chunk.with_answers(at, pa.table(columns))
            for number, place in enumerate(places):
                made[place] = ranked, number
        return made


def _outputs(task: Task, answers: pa.Table) -> pa.StructArray:
    """The outputs of a step, of its columns."""
    fields = list(task.output_type)
    return pa.StructArray.from_arrays(
        [one_array(answers[task.names[field.name]]) for field in fields], fields=fields
    )


def renderer_of(step: Job) -> Render:
    """What turns a row into the request of a step, or into its requests.

    In each of these, the columns of all steps whose completions belong together are those of one completion.

    :raises PreflightError: a user's function can't be imported.
    """
    base, of = step.task.renderer(), step.spec.question.step.each
    if of is None:
        return base
    family = {name: Completions(one.spec) for name, one in step.family.items()}

    def render(row: Mapping[str, Any]) -> Request:
        places = family[of].places(row)
        if not places:
            raise RenderError(
                f"step {of!r} was not asked about this row, so it has no completions; give the step that "
                "asks about each of them a condition (when)"
            )
        each = tuple(base({**row, **_at(place, row)}) for place in places)
        return Request(each=each, places=tuple(places))

    def _at(place: int, row: Mapping[str, Any]) -> dict[str, Any]:
        return {name: value for one in family.values() for name, value in one.columns(row, place).items()}

    return render
