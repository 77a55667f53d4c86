# SPDX-License-Identifier: Apache-2.0
"""Scores: a row asks how well documents fit a query, and yields a score, or a ranking of several documents.

Parts and the response store keep the scores in the order of the documents. Publishing makes the ranking of
them, so another `top_n` pays for nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_raybatch.job.row import Response, RowFailure
from airflow_provider_raybatch.job.tasks.base import PoolingTask, failure_of_numbers

SCORES = "scores"
_RANKED = pa.struct([("index", pa.int64()), ("score", pa.float32())])


class Score(PoolingTask):
    """See :class:`~airflow_provider_raybatch.job.tasks.base.Task` for the methods."""

    @property
    def _ranks(self) -> bool:
        return self.spec.documents_column is not None

    @property
    def output_type(self) -> pa.StructType:
        return pa.struct([(SCORES, pa.list_(pa.float32())), *self.token_fields])

    @property
    def published_type(self) -> pa.StructType:
        """Of the scores a ranking, best first; of a single document a score."""
        kind = pa.list_(_RANKED) if self._ranks else pa.float32()
        return pa.struct([(SCORES, kind), *self.token_fields])

    def published_column(self, field: pa.Field, found: pa.ChunkedArray) -> pa.ChunkedArray:
        if field.name != SCORES:
            return super().published_column(field, found)
        if self._ranks:
            return pa.chunked_array([_ranking(found.combine_chunks(), self.spec.top_n)], field.type)
        return pc.list_element(found, 0)

    @property
    def names(self) -> dict[str, str]:
        names = super().names
        if self.spec.response_column is None:
            names[SCORES] = self.spec.output_prefix + ("ranking" if self._ranks else "score")
        return names

    def output(self, response: Response) -> dict[str, Any]:
        return {SCORES: response.pooled, **self.tokens(response)}

    def check(self, response: Response, row_sampling: Mapping[str, Any]) -> Response | RowFailure:
        return failure_of_numbers(response, "score", "answer") or response


def _ranking(found: pa.ListArray, most: int | None) -> pa.ListArray:
    """Of each list of scores the best ones with their places; equal ones in the order of the documents."""
    scores = pc.list_flatten(found).to_numpy(zero_copy_only=False)
    rows = pc.list_parent_indices(found).to_numpy(zero_copy_only=False)
    sizes = np.bincount(rows, minlength=len(found))
    firsts = np.cumsum(sizes) - sizes
    order = np.lexsort((-scores, rows))  # stable, and rows stay together
    kept = order[np.arange(len(order)) - firsts[rows] < (most or len(order))]
    ends = np.cumsum([0, *np.minimum(sizes, most or len(order))])
    ranked = pa.StructArray.from_arrays(
        [pa.array(kept - firsts[rows[kept]], pa.int64()), pa.array(scores[kept], pa.float32())],
        fields=list(_RANKED),
    )
    return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), ranked)
