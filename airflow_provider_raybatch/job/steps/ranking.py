# SPDX-License-Identifier: Apache-2.0
"""Bring completions of earlier steps into the order of the answers about them: good ones first, best first.

A row's response is its first completion. So once a judge has ranked the drafts, the row has the best draft.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_raybatch.contract.arguments.steps import CANDIDATE_COLUMN
from airflow_provider_raybatch.job.input.table import one_array
from airflow_provider_raybatch.job.row import Response
from airflow_provider_raybatch.job.steps.columns import columns_of
from airflow_provider_raybatch.job.steps.way import InChunk, by_chunk
from airflow_provider_raybatch.job.tasks.base import Task
from airflow_provider_raybatch.job.work import Job

_COMPLETIONS = "completions"
_OF_ALL = frozenset({"output_tokens"})
"""What a row has of all its completions, and not of the first."""
Order = Sequence[int]
"""Which completions of the earlier step a row's answers are about; none without answers."""


class Ranking:
    """What the answers to a step change in the columns of earlier ones.

    :param step: the step.
    """

    def __init__(self, step: Job) -> None:
        asked = step.spec.asked_step
        family = asked.family if asked is not None and asked.step.each is not None else ()
        self._tasks = [step.earlier_steps[asked.earlier.index(name)].task for name in family] if asked else []

    def by_responses(self, rows: Sequence[InChunk], results: Sequence[object]) -> Sequence[InChunk]:
        """Rows in the order of what the engine has answered.

        :param results: responses that were checked; others have no order.
        """
        if not self._tasks:
            return rows
        return self._ranked(
            rows,
            [
                [one.extra[CANDIDATE_COLUMN] for one in result.completions]
                if isinstance(result, Response)
                else ()
                for result in results
            ],
        )

    def by_outputs(self, rows: Sequence[InChunk], outputs: pa.StructArray) -> Sequence[InChunk]:
        """Rows in the order of answers that exist already; see :meth:`by_responses`."""
        if not self._tasks:
            return rows
        completions = pc.struct_field(outputs, _COMPLETIONS).to_pylist()
        return self._ranked(rows, [[one[CANDIDATE_COLUMN] for one in some or ()] for some in completions])

    def _ranked(self, rows: Sequence[InChunk], orders: Sequence[Order]) -> list[InChunk]:
        made = list(rows)
        moved = [place for place, order in enumerate(orders) if list(order) != list(range(len(order)))]
        for group in by_chunk([rows[place] for place in moved]):
            places = [moved[number] for number in group]
            chunk, at = rows[places[0]][0], [rows[place][1] for place in places]
            assert chunk.answers is not None  # of the steps in the family
            before = chunk.answers.take(pa.array(at, pa.int64()))
            order = [orders[place] for place in places]
            columns = {
                column.name: values
                for task in self._tasks
                for column, values in zip(*_reordered(task, before, order), strict=True)
            }
            ranked = chunk.with_answers(at, pa.table(columns))
            for number, place in enumerate(places):
                made[place] = ranked, number
        return made


def _reordered(
    task: Task, answers: pa.Table, orders: Sequence[Order]
) -> tuple[pa.Schema, list[pa.ChunkedArray]]:
    """The columns of a step with its completions in another order.

    :param orders: of each row, the places of those that come first; null completions stay null.
    """
    outputs = {one.name: one_array(answers[task.names[one.name]]) for one in task.output_type}
    lists = outputs[_COMPLETIONS]
    sizes = pc.fill_null(pc.list_value_length(lists), 0).to_pylist()
    places: list[int] = []
    for start, size, order in zip(lists.offsets.to_pylist(), sizes, orders, strict=False):
        first = [place for place in order if place < size]
        places += [start + place for place in (*first, *sorted(set(range(size)).difference(first)))]
    values, there = lists.values.take(pa.array(places, pa.int64())), pc.is_valid(lists)
    starts = [
        begin if known else None
        for begin, known in zip(accumulate(sizes, initial=0), there.to_pylist(), strict=False)
    ]
    ordered = pa.ListArray.from_arrays(pa.array([*starts, sum(sizes)], pa.int32()), values, type=lists.type)
    outputs[_COMPLETIONS] = ordered
    firsts = pc.list_element(ordered.drop_null(), 0)
    for name, column in zip(firsts.type.names, firsts.flatten(), strict=True):
        if name not in _OF_ALL:
            own = "response" if name == "text" else name
            outputs[own] = pc.replace_with_mask(outputs[own], there, column)
    made = pa.StructArray.from_arrays(
        list(outputs.values()), fields=list(task.output_type), mask=pc.invert(there)
    )
    table = columns_of(task, pa.chunked_array([made]))
    return table.schema, table.columns
