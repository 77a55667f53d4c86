# SPDX-License-Identifier: Apache-2.0
"""Rows of parts as those of the dataset, where a row becomes several, and how many are blank."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.job.input.table import one_array
from airflow_provider_raybatch.job.parts.part import inputs_of
from airflow_provider_raybatch.job.parts.sizes import portions, together
from airflow_provider_raybatch.job.tasks.base import Task

_ROW_GROUP = 131_072
_MOST_BYTES = 128 * 1024 * 1024
"""In memory at once: the input of a row is repeated for each row that it becomes."""


def dataset_rows(good: pa.Table, task: Task, most: int = _MOST_BYTES) -> tuple[int, Iterator[pa.Table]]:
    """How many rows the dataset has of good rows of parts, and those rows, some at a time.

    :param most: about how many bytes at a time.
    """
    if task.chunk_index is None:
        return good.num_rows, in_groups(good)
    outputs, of_row = task.split(one_array(good["output"]))
    inputs = good.drop_columns(["output"])
    return len(of_row), (
        inputs.take(pa.array(of_row[start:stop])).append_column("output", outputs.slice(start, stop - start))
        for start, stop in portions(together(inputs.columns, inputs.num_rows)[of_row].tolist(), most)
    )


def in_groups(rows: pa.Table, most: int = _ROW_GROUP) -> Iterator[pa.Table]:
    """The rows, by default as many at a time as a row group of a file has: what is made of them is a copy."""
    return (rows.slice(start, most) for start in range(0, rows.num_rows, most))


def blank_rows(good: pa.Table, bad: pa.Table, spec: BatchInferenceSpec) -> int:
    """How many rows give the prompt only blank text."""
    if spec.on_blank == "null" and not spec.step_name:
        return good["output"].null_count if good.num_rows else 0
    if bad.num_rows:
        bad = bad.filter(pc.invert(pc.ends_with(pc.struct_field(bad["failure"], "step"), "read")))
    columns, some = list(spec.column_arguments()), chain(in_groups(good), in_groups(bad))
    return sum(_blank_in(inputs_of(rows), columns) for rows in some)


def _blank_in(inputs: Mapping[str, pa.Array], columns: Sequence[str]) -> int:
    if not columns or not inputs.keys() >= {*columns}:  # images that parts do not have
        return 0
    found: Any = True
    for column in map(inputs.__getitem__, columns):
        blank = column.is_null()
        if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
            is_empty = pc.equal(pc.utf8_length(column), 0)
            blank = pc.fill_null(pc.or_(pc.utf8_is_space(column), is_empty), True)
        found = pc.and_(found, blank)
    return int(pc.sum(found).as_py() or 0)
