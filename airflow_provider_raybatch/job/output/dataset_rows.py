# SPDX-License-Identifier: Apache-2.0
"""Rows of parts as those of the dataset, where a row becomes several."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from airflow_provider_raybatch.job.input.table import one_array
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
