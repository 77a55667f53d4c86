# SPDX-License-Identifier: Apache-2.0
"""Put the answers of steps that stand in for each other, such as a draft and its repair, into one column."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_raybatch.workflows.errors import WorkflowError
from airflow_provider_raybatch.workflows.rows import require
from airflow_provider_raybatch.workflows.sift import with_column


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
