# SPDX-License-Identifier: Apache-2.0
"""The columns that steps read and add: input of the steps after them, and then of the dataset."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from airflow_provider_raybatch.job.input.reader import Reader
from airflow_provider_raybatch.job.input.table import members
from airflow_provider_raybatch.job.parts.part import FAILURE, inputs_of
from airflow_provider_raybatch.job.request.render import needed_columns
from airflow_provider_raybatch.job.tasks.base import Task

if TYPE_CHECKING:
    from airflow_provider_raybatch.job.work import Job  # which imports Ray


def schema_of(task: Task) -> pa.Schema:
    """The columns of a step, by their names in the dataset."""
    own = [(task.names[column.name], column.type) for column in task.published_type]
    return pa.schema([*own, *task.derived.items()])


def with_steps(source: pa.Schema, job: Job) -> pa.Schema:
    """Columns of the source, and those that the steps before the last one add."""
    added = [column for step in job.before for column in schema_of(step.task)]
    return pa.schema([*source, *added])


def columns_of(task: Task, outputs: pa.ChunkedArray) -> pa.Table:
    """The columns of a step, made of outputs of good rows."""
    columns = task.published(outputs)
    if task.derived:
        size = len(outputs)
        rows = {"ok": pa.array([True] * size, pa.bool_()), "failure": pa.nulls(size, FAILURE)}
        derived = task.with_derived(pa.table({**rows, "output": outputs}))["derived"]
        columns += [pa.chunked_array([column]) for column in members(derived).values()]
    return pa.table(columns, schema=schema_of(task))


def rows_of_step(task: Task, rows: pa.Table) -> pa.Table:
    """Good rows of parts of a later step as if they were of this one; null outputs where it did not ask.

    :param rows: with `input`, which has the columns of the step.
    """
    inputs = members(rows["input"])
    outputs = {column.name: inputs[task.names[column.name]] for column in task.published_type}
    left_out = outputs["input_tokens"].is_null()
    made = rows.select(["ordinal", "id", "input"]).append_column(
        "output", pa.StructArray.from_arrays(list(outputs.values()), names=list(outputs), mask=left_out)
    )
    if not task.derived:
        return made
    derived = [inputs[name] for name in task.derived]
    return made.append_column("derived", pa.StructArray.from_arrays(derived, names=list(task.derived)))


def null_columns(task: Task, rows: int) -> pa.Table:
    """The columns of a step that did not ask so many rows."""
    schema = schema_of(task)
    return pa.table([pa.nulls(rows, column.type) for column in schema], schema=schema)


def columns_so_far(tasks: Sequence[Task], rows: pa.Table) -> pa.Table:
    """The columns of several steps, of good rows of parts of the last of them.

    :param rows: with `output`, and with `input`, which has the columns of the steps before.
    """
    *before, last = tasks
    earlier = inputs_of(rows)
    found = {
        column.name: earlier.get(column.name, pa.nulls(rows.num_rows, column.type))
        for task in before
        for column in schema_of(task)
    }
    own = columns_of(last, rows["output"])
    return pa.table({**found, **dict(zip(own.column_names, own.columns, strict=True))})


def reader_of(job: Job, whole: bool = True, earlier_images: bool = True) -> Reader:
    """What reads the rows of a job, with the values that its requests, conditions and row ids need.

    :param whole: see :class:`~airflow_provider_raybatch.job.input.reader.Reader`.
    :param earlier_images: whether steps before this one, whose answers are there, need their images.
    """
    texts = {name for step in job.questions for name in step.spec.text_columns()}
    made = {name for step in job.questions for name in step.task.column_names}
    columns: list[str] | None = []
    for step in job.questions:
        shows = earlier_images or step is job
        spec = step.spec if shows else step.spec.model_copy(update={"images": []})
        needed, row_id = needed_columns(spec), filter(None, [spec.id_column])
        columns = None if columns is None or needed is None else [*columns, *needed, *row_id]
    if columns is not None:
        columns = [name for name in dict.fromkeys(columns) if name not in made]
    return Reader(job.listing, columns, job.credentials, whole, texts - made)
