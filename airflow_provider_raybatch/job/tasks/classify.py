# SPDX-License-Identifier: Apache-2.0
"""Classification: a row asks a text, and yields its label and the probability of each.

Parts and the response store keep a map of the probabilities, since a store has answers of many models.
Publishing makes a struct of it, with a field for each of the model's labels.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_raybatch.job.row import Response, RowFailure
from airflow_provider_raybatch.job.tasks.base import PoolingTask, failure_of_numbers

ONE, ALL = "probability", "probabilities"
_LOGITS = {ONE: "logit", ALL: "logits"}
"""Names of the columns where the model's activation is switched off."""


@dataclass(frozen=True)
class Classify(PoolingTask):
    """See :class:`~airflow_provider_raybatch.job.tasks.base.Task` for the methods.

    :param labels: of the model, in its order; empty while they are not known.
    """

    labels: tuple[str, ...] = ()

    @property
    def output_type(self) -> pa.StructType:
        return pa.struct([
            ("label", pa.string()),
            (ONE, pa.float32()),
            (ALL, pa.map_(pa.string(), pa.float32())),
            *self.token_fields,
        ])

    @property
    def published_type(self) -> pa.StructType:
        """Of the probabilities a struct, unless no row tells the labels."""
        if not self.labels:
            return self.output_type
        by_label = pa.struct([(label, pa.float32()) for label in self.labels])
        return pa.struct([one.with_type(by_label) if one.name == ALL else one for one in self.output_type])

    def published_column(self, field: pa.Field, found: pa.ChunkedArray) -> pa.ChunkedArray:
        if field.name != ALL or not self.labels:
            return super().published_column(field, found)
        whole = found.combine_chunks()
        columns = [pc.map_lookup(whole, query_key=label, occurrence="first") for label in self.labels]
        return pa.chunked_array([pa.StructArray.from_arrays(columns, fields=list(field.type))])

    def measured(self, outputs: Iterable[pa.ChunkedArray]) -> Classify:
        for some in outputs:
            return replace(self, labels=tuple(label for label, _ in some[0][ALL].as_py()))
        return self

    @property
    def names(self) -> dict[str, str]:
        names = super().names
        if self.spec.pooling.get("use_activation") is False:
            names |= {name: self.spec.output_prefix + logit for name, logit in _LOGITS.items()}
        return names

    def output(self, response: Response) -> dict[str, Any]:
        numbers = np.empty(0, np.float32) if response.pooled is None else response.pooled
        best = int(numbers.argmax())
        return {
            "label": response.labels[best],
            ONE: numbers[best],
            ALL: list(zip(response.labels, numbers.tolist(), strict=True)),
            **self.tokens(response),
        }

    def check(self, response: Response, row_sampling: Mapping[str, Any]) -> Response | RowFailure:
        return failure_of_numbers(response, "probabilities", "answer") or response
