# SPDX-License-Identifier: Apache-2.0
"""Embeddings of long texts: a row asks a text, which is cut into chunks, and yields a vector for each.

Until the dataset is published, a row has one output with all its chunks. So it is asked, reused, repeated and
fails as any other row does, and is done when its last chunk is. Publishing makes a row of each chunk.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_raybatch.job.row import Response, RowFailure
from airflow_provider_raybatch.job.tasks.embed import NUMBERS, VECTOR, Embed

_INDEX = "chunk_index"
_CHUNKS = "chunks"
_CHUNK = pa.struct([("text", pa.string()), ("start", pa.int64()), ("tokens", pa.int64())])


@dataclass(frozen=True)
class EmbedChunks(Embed):
    """See :class:`~airflow_provider_raybatch.job.tasks.base.Task` for the methods.

    In parts and in the response store, the vectors of a row are one list, one after the other.
    """

    @property
    def output_type(self) -> pa.StructType:
        vectors = (VECTOR, pa.list_(pa.float32()))
        return pa.struct([vectors, ("input_tokens", pa.int64()), (_CHUNKS, pa.list_(_CHUNK))])

    @property
    def published_type(self) -> pa.StructType:
        of_chunk = [(_INDEX, pa.int64()), ("chunk_text", pa.string()), ("chunk_start", pa.int64())]
        return pa.struct([*list(super().published_type)[:2], *(pa.field(*one) for one in of_chunk)])

    def leaves_out(self, column: pa.Field) -> bool:
        """The column of the texts, which each chunk would repeat as a whole, unless it names the rows."""
        return bool(column.name == self.spec.prompt_column != self.spec.id_column)

    @property
    def chunk_index(self) -> str:
        return _INDEX

    def measured(self, outputs: Iterable[pa.ChunkedArray]) -> EmbedChunks:
        for some in outputs:
            return replace(self, size=_size(some))
        return self

    def output(self, response: Response) -> dict[str, Any]:
        vectors = response.pooled
        return {
            VECTOR: None if vectors is None else vectors.reshape(-1),
            "input_tokens": response.input_tokens,
            _CHUNKS: response.extra.get(_CHUNKS),
        }

    def _value(self, response: Response, name: str) -> Any:
        return response.extra.get(name) if name == _CHUNKS else super()._value(response, name)

    def check(self, response: Response, row_sampling: Mapping[str, Any]) -> Response | RowFailure:
        """A row fails with the first of its chunks that does."""
        vectors, chunks = response.pooled, response.extra.get(_CHUNKS, ())
        if vectors is None or vectors.ndim != 2 or not chunks or len(vectors) != len(chunks):
            return RowFailure("engine", "the engine gave no vector for each chunk", response.input_tokens)
        for number, vector in enumerate(vectors):
            checked = super().check(replace(response, pooled=vector), row_sampling)
            if isinstance(checked, RowFailure):
                where = f"chunk {number} (from character {chunks[number]['start']:,})"
                return replace(checked, reason=f"{where}: {checked.reason}")
        return response

    def split(self, outputs: pa.StructArray) -> tuple[pa.StructArray, npt.NDArray[np.int64]]:
        vectors, chunks = (pc.struct_field(outputs, name) for name in (VECTOR, _CHUNKS))
        counts = chunks.value_lengths().to_numpy().astype(np.int64)
        of_row: npt.NDArray[np.int64] = np.repeat(np.arange(len(counts)), counts)
        index = np.arange(len(of_row)) - (np.cumsum(counts) - counts)[of_row]
        numbers, chunk = vectors.flatten().cast(NUMBERS[self.spec.embed_dtype]), chunks.flatten()
        columns = [
            pa.FixedSizeListArray.from_arrays(numbers, len(numbers) // len(index)),
            pc.struct_field(chunk, "tokens"),
            pa.array(index),
            pc.struct_field(chunk, "text"),
            pc.struct_field(chunk, "start"),
        ]
        names = [field.name for field in self.published_type]
        return pa.StructArray.from_arrays(columns, names=names), of_row


def _size(outputs: pa.ChunkedArray) -> int:
    first = outputs[0]
    return len(first[VECTOR]) // len(first[_CHUNKS])
