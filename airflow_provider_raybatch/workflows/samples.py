# SPDX-License-Identifier: Apache-2.0
"""Make a row of each sample of a batch inference with ``n`` > 1."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_raybatch.workflows.rows import require
from airflow_provider_raybatch.workflows.sift import with_column


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
