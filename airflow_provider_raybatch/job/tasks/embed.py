# SPDX-License-Identifier: Apache-2.0
"""Embeddings: a row asks a text, and yields one vector.

Parts and the response store keep ``list<float>``, since a store has vectors of many models. Publishing makes
fixed-size lists of them, in the type that was asked for: so another `embed_dtype` pays for no vector. A line
of an OpenAI batch file may ask several texts; its vectors follow each other in one list.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from airflow_provider_raybatch.job.row import Response, RowFailure
from airflow_provider_raybatch.job.tasks.base import PoolingTask, failure_of_numbers

VECTOR = "embedding"
NUMBERS = {"float32": pa.float32(), "float16": pa.float16()}
_CHUNKS = "chunks"
"""In `extra` of a response with a vector for each of a line's texts."""
_NONE = Response()
_NO_NUMBERS: npt.NDArray[np.float32] = np.empty(0, np.float32)
_LARGEST = {"float32": np.inf, "float16": float(np.finfo(np.float16).max)}


@dataclass(frozen=True)
class Embed(PoolingTask):
    """See :class:`~airflow_provider_raybatch.job.tasks.base.Task` for the methods.

    :param size: numbers of a vector; 0 while that is not known.
    """

    size: int = 0

    @property
    def output_type(self) -> pa.StructType:
        return pa.struct([(VECTOR, pa.list_(pa.float32())), *self.token_fields])

    @property
    def published_type(self) -> pa.StructType:
        """Of the vectors a fixed-size list, unless there is none to measure."""
        numbers = NUMBERS[self.spec.embed_dtype]
        size = self.size or self.spec.pooling.get("dimensions", 0)
        vector = pa.field(VECTOR, pa.list_(numbers, size) if size else pa.list_(numbers))
        return pa.struct([vector, *list(self.output_type)[1:]])

    def measured(self, outputs: Iterable[pa.ChunkedArray]) -> Embed:
        for some in outputs:
            return replace(self, size=len(some[0][VECTOR]))
        return self

    def output(self, response: Response) -> dict[str, Any]:
        return {VECTOR: response.pooled, **self.tokens(response)}

    def outputs(self, responses: Sequence[Response | None]) -> pa.StructArray:
        """As one array of numbers; a Python object for each would take most of a replica's time."""
        found = [response or _NONE for response in responses]
        vectors = [_NO_NUMBERS if one.pooled is None else one.pooled.reshape(-1) for one in found]
        ends = np.cumsum([0, *map(len, vectors)], dtype=np.int32)
        numbers = pa.array(np.concatenate([_NO_NUMBERS, *vectors]))
        columns = [
            pa.ListArray.from_arrays(pa.array(ends), numbers),
            *(
                pa.array([self._value(one, field.name) for one in found], field.type)
                for field in list(self.output_type)[1:]
            ),
        ]
        is_null = pa.array([response is None for response in responses], pa.bool_())
        return pa.StructArray.from_arrays(columns, fields=list(self.output_type), mask=is_null)

    def _value(self, response: Response, name: str) -> Any:
        return getattr(response, name)

    def check(self, response: Response, row_sampling: Mapping[str, Any]) -> Response | RowFailure:
        if self.spec.asks_by_lines and _CHUNKS in response.extra and response.pooled is not None:
            each = (replace(response, pooled=one, extra={}) for one in response.pooled)
            checked = (self.check(one, row_sampling) for one in each)
            return next((one for one in checked if isinstance(one, RowFailure)), response)
        vector = response.pooled
        failure = failure_of_numbers(response, "vector", "vector")
        if failure is not None or vector is None:
            return failure or response
        asked = self.spec.pooling.get("dimensions", vector.size)
        if vector.size != asked:
            reason = f"the vector has {vector.size} dimensions, and pooling asks for {asked}"
            return RowFailure("engine", reason, response.input_tokens)
        if np.abs(vector).max() > _LARGEST[self.spec.embed_dtype]:
            reason = "the vector has numbers that embed_dtype 'float16' can't hold; set it to 'float32'"
            return RowFailure("engine", reason, response.input_tokens)
        return response
