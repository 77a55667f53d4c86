# SPDX-License-Identifier: Apache-2.0
"""The columns of a step that gives several completions: those of each, and in another order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_raybatch.contract.arguments.steps import CANDIDATE_COLUMN, REJECTED_COLUMN
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.job.input.json_types import Kind
from airflow_provider_raybatch.job.row import Response
from airflow_provider_raybatch.job.tasks.typed_columns import column_kinds, values_of

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
