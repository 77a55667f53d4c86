# SPDX-License-Identifier: Apache-2.0
"""Tasks of pooling models: a row asks a text, and yields vectors, a label, or scores.

Parts and the response store keep ``list<float>``, since a store has vectors of many models. Publishing makes
fixed-size lists of them, in the type that was asked for: so another `embed_dtype` pays for no vector. A line
of an OpenAI batch file may ask several texts; its vectors follow each other in one list.

Until the dataset is published, a row has one output with all its chunks. So it is asked, reused, repeated and
fails as any other row does, and is done when its last chunk is. Publishing makes a row of each chunk.

Parts and the response store keep a map of the probabilities, since a store has answers of many models.
Publishing makes a struct of it, with a field for each of the model's labels.

Parts and the response store keep the scores in the order of the documents. Publishing makes the ranking of
them, so another `top_n` pays for nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

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
class EmbedTask(PoolingTask):
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

    def measured(self, outputs: Iterable[pa.ChunkedArray]) -> EmbedTask:
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


_INDEX = "chunk_index"
_CHUNK_LIST = "chunks"
_CHUNK = pa.struct([("text", pa.string()), ("start", pa.int64()), ("tokens", pa.int64())])


@dataclass(frozen=True)
class EmbedChunks(EmbedTask):
    """See :class:`~airflow_provider_raybatch.job.tasks.base.Task` for the methods.

    In parts and in the response store, the vectors of a row are one list, one after the other.
    """

    @property
    def output_type(self) -> pa.StructType:
        vectors = (VECTOR, pa.list_(pa.float32()))
        return pa.struct([vectors, ("input_tokens", pa.int64()), (_CHUNK_LIST, pa.list_(_CHUNK))])

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
            _CHUNK_LIST: response.extra.get(_CHUNK_LIST),
        }

    def _value(self, response: Response, name: str) -> Any:
        return response.extra.get(name) if name == _CHUNK_LIST else super()._value(response, name)

    def check(self, response: Response, row_sampling: Mapping[str, Any]) -> Response | RowFailure:
        """A row fails with the first of its chunks that does."""
        vectors, chunks = response.pooled, response.extra.get(_CHUNK_LIST, ())
        if vectors is None or vectors.ndim != 2 or not chunks or len(vectors) != len(chunks):
            return RowFailure("engine", "the engine gave no vector for each chunk", response.input_tokens)
        for number, vector in enumerate(vectors):
            checked = super().check(replace(response, pooled=vector), row_sampling)
            if isinstance(checked, RowFailure):
                where = f"chunk {number} (from character {chunks[number]['start']:,})"
                return replace(checked, reason=f"{where}: {checked.reason}")
        return response

    def split(self, outputs: pa.StructArray) -> tuple[pa.StructArray, npt.NDArray[np.int64]]:
        vectors, chunks = (pc.struct_field(outputs, name) for name in (VECTOR, _CHUNK_LIST))
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
    return len(first[VECTOR]) // len(first[_CHUNK_LIST])


ONE, ALL = "probability", "probabilities"
_LOGITS = {ONE: "logit", ALL: "logits"}
"""Names of the columns where the model's activation is switched off."""


@dataclass(frozen=True)
class ClassifyTask(PoolingTask):
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

    def measured(self, outputs: Iterable[pa.ChunkedArray]) -> ClassifyTask:
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


SCORES = "scores"
_RANKED = pa.struct([("index", pa.int64()), ("score", pa.float32())])


class ScoreTask(PoolingTask):
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
