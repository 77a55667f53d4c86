# SPDX-License-Identifier: Apache-2.0
"""Answers of a batch inference as rows that steps check: of samples, of several steps, and of failed rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_raybatch.contract.manifest import BatchManifest
from airflow_provider_raybatch.dataset import Result, s3_credentials
from airflow_provider_raybatch.dataset.rows import letters
from airflow_provider_raybatch.workflows.errors import WorkflowError, reading
from airflow_provider_raybatch.workflows.rows import Rows, require
from airflow_provider_raybatch.workflows.sift import DROP_COLUMNS, with_column

_BATCH_ROWS = 1024


def one_row_a_sample(
    batches: Iterable[pa.RecordBatch], completions: str = "completions", response: str = "response"
) -> Iterator[pa.RecordBatch]:
    """One row per sample; with ``n`` = 1 that is one row per input row.

    :param completions: column of all samples; removed. If it does not exist, rows stay as they are.
    :param response: column of the first sample's text; gets the text of each sample.
    :returns: batches with one more column, `sample`, that counts from 0.
    :raises WorkflowError: there is no column `response`, or `sample` is a column already.
    """
    for batch in batches:
        require(batch.schema, response, "response")
        if completions not in batch.schema.names:
            yield with_column(batch, "sample", pa.array([0] * batch.num_rows, pa.int64()))
            continue
        lists = batch.column(completions)
        rows, texts = pc.list_parent_indices(lists), pc.struct_field(pc.list_flatten(lists), "text")
        parents = rows.to_numpy()
        numbers = np.arange(len(parents)) - np.searchsorted(parents, parents)
        exploded = batch.drop_columns([completions]).take(rows)
        exploded = exploded.set_column(exploded.schema.get_field_index(response), response, texts)
        yield with_column(exploded, "sample", pa.array(numbers, pa.int64()))


def first_values(
    batches: Iterable[pa.RecordBatch], columns: Mapping[str, Sequence[str]]
) -> Iterator[pa.RecordBatch]:
    """The rows with one column in place of several: the first value that is not null, or null.

    :param columns: by the name of the new column, the names of those that it replaces, such as ``{"answer":
        ["draft_answer", "repair_answer"]}``. Each of them is named once.
    :raises WorkflowError: a column is missing or named twice, the types of those that are put into one
        differ, or another column has the new name.
    """
    replaced = [name for names in columns.values() for name in names]
    if twice := [name for name in replaced if replaced.count(name) > 1]:
        raise WorkflowError(f"columns: {twice[0]!r} is named twice; put it into one of the new columns.")
    for batch in batches:
        found = {new: _first(batch, new, names) for new, names in columns.items()}
        batch = batch.drop_columns(replaced)
        for new, values in found.items():
            batch = with_column(batch, new, values)
        yield batch


def _first(batch: pa.RecordBatch, new: str, names: Sequence[str]) -> pa.Array:
    if not names:
        raise WorkflowError(f"columns: {new!r} replaces no column; name at least one.")
    for name in names:
        require(batch.schema, name)
    try:
        return pc.coalesce(*(batch.column(name) for name in names))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        kinds = ", ".join(f"{name} ({batch.schema.field(name).type})" for name in names)
        raise WorkflowError(f"columns: {new!r} can't hold {kinds}; name columns of one type.") from error


def failed_rows(
    result: Result, step: str, schema: pa.Schema, aws_conn_id: str | None = None
) -> Iterator[pa.RecordBatch]:
    """The rows for which a batch inference has no response.

    :param step: name for ``dropped_by``; ``rule`` is the step of the job that failed, such as ``engine``.
    :param schema: schema of the dataset that gets the rows; columns that a row lacks are null.
    :raises WorkflowError: `result` has no manifest that can be read, or its dead letters are gone or broken.
    """
    for manifest in Rows(result, aws_conn_id=aws_conn_id).manifests:
        if not isinstance(manifest, BatchManifest) or manifest.dead_letter_uri is None:
            continue
        found = _rows_of(manifest, step, aws_conn_id)
        while rows := list(islice(found, _BATCH_ROWS)):
            arrays = [_array([row.get(one.name) for row in rows], one.type) for one in schema]
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _rows_of(manifest: BatchManifest, step: str, aws_conn_id: str | None) -> Iterator[dict[str, Any]]:
    with reading():
        for letter in letters(manifest, s3_credentials(manifest.uri, aws_conn_id)):
            drop = dict(zip(DROP_COLUMNS, (step, letter["step"], letter["reason"]), strict=True))
            yield {**(letter["row"] or {}), **drop}


def _array(values: list[Any], kind: pa.DataType) -> pa.Array:
    try:
        return pa.array(values, kind)
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        return pa.nulls(len(values), kind)  # For example a timestamp, which is text in a dead letter.
