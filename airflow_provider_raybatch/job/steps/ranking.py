# SPDX-License-Identifier: Apache-2.0
"""Completions of earlier steps: a step asks about each, and the answers put them in order, the best first.

A row's response is its first completion. So once a judge has ranked the drafts, the row has the best draft.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from airflow_provider_raybatch.job.input.table import one_array
from airflow_provider_raybatch.job.request.render import Render
from airflow_provider_raybatch.job.row import RenderError, Request
from airflow_provider_raybatch.job.steps.columns import columns_of
from airflow_provider_raybatch.job.steps.way import InChunk, by_chunk
from airflow_provider_raybatch.job.tasks.base import Task
from airflow_provider_raybatch.job.tasks.completions import Completions, Order, order_of, orders_of, reordered
from airflow_provider_raybatch.job.work import Job


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
