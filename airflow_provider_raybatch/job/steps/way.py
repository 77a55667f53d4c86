# SPDX-License-Identifier: Apache-2.0
"""A row's way from step to step: conditions leave steps out, and answers rank the completions before.

A row's response is its first completion. So once a judge has ranked the drafts, the row has the best draft.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.job.input.chunk_rows import ChunkRows
from airflow_provider_raybatch.job.input.table import one_array
from airflow_provider_raybatch.job.request.render import Render
from airflow_provider_raybatch.job.request.row_text import is_blank_row
from airflow_provider_raybatch.job.row import RenderError, Request
from airflow_provider_raybatch.job.steps.columns import columns_of, null_columns
from airflow_provider_raybatch.job.steps.known import KnownRows
from airflow_provider_raybatch.job.tasks.base import Task
from airflow_provider_raybatch.job.tasks.completions import Completions, Order, order_of, orders_of, reordered
from airflow_provider_raybatch.job.work import Job

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
