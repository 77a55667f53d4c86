# SPDX-License-Identifier: Apache-2.0
"""The request keys of a whole input, made on CPUs before an engine starts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from airflow_provider_raybatch.job import keys
from airflow_provider_raybatch.job.key_array import Keys
from airflow_provider_raybatch.job.preflight.input_check import Source
from airflow_provider_raybatch.job.request import Request, needed_columns, render_all, renderer
from airflow_provider_raybatch.job.source.chunks import Chunk
from airflow_provider_raybatch.job.source.reading import Reader
from airflow_provider_raybatch.job.work import Job

_ROWS_PER_CHUNK = 4096
_CHUNKS_PER_TASK = 16


@dataclass(frozen=True)
class RequestKeys:
    """The keys of an input, 33 bytes a row; rows that make no request are left out.

    :param ordinals: of the rows, ascending.
    :param keys: each row's key; sampled requests that equal an earlier one's have one of their own.
    :param repetitions: how many rows before it ask the same, for sampled requests.
    :param greedy: whether asking again gives the same answer.
    """

    ordinals: npt.NDArray[np.int64]
    keys: Keys
    repetitions: npt.NDArray[np.int64]
    greedy: npt.NDArray[np.bool_]

    def where(self, chosen: npt.NDArray[np.bool_]) -> RequestKeys:
        """Some of them, by place."""
        return RequestKeys(
            self.ordinals[chosen], self.keys[chosen], self.repetitions[chosen], self.greedy[chosen]
        )


Made = tuple[npt.NDArray[np.int64], Keys, npt.NDArray[np.bool_]]
Mapper = Callable[[Callable[[Job, Sequence[Chunk]], Made], Job, Sequence[Sequence[Chunk]]], Iterable[Made]]


def in_sequence(
    function: Callable[[Job, Sequence[Chunk]], Made], job: Job, groups: Sequence[Sequence[Chunk]]
) -> Iterable[Made]:
    """Group by group, in this process."""
    return (function(job, group) for group in groups)


def request_keys(job: Job, source: Source, mapper: Mapper = in_sequence) -> RequestKeys:
    """Render all rows and make their keys.

    :param mapper: applies a function to groups of chunks, in their order.
    :raises StorageError: the source can't be read, or is no longer what it was.
    """
    chunks = source.chunks(_ROWS_PER_CHUNK)
    groups = [chunks[start : start + _CHUNKS_PER_TASK] for start in range(0, len(chunks), _CHUNKS_PER_TASK)]
    made = list(mapper(keys_of, job, groups)) or [_nothing()]
    ordinals, own, greedy = (np.concatenate(arrays) for arrays in zip(*made, strict=True))
    numbers = keys.repetitions(own, ~greedy)
    return RequestKeys(ordinals, keys.told_apart(own, numbers), numbers, greedy)


def keys_of(job: Job, chunks: Sequence[Chunk]) -> Made:
    """Ordinals, keys (not yet told apart) and greediness of the rows of `chunks` that make a request."""
    reader = Reader(job.listing, needed_columns(job.spec), job.credentials, whole=False)
    render = renderer(job.spec)
    ordinals: list[int] = []
    made: list[bytes] = []
    greedy: list[bool] = []
    for chunk in chunks:
        for position, request in enumerate(render_all(render, reader.read(chunk).rows)):
            if isinstance(request, Request):
                ordinals.append(chunk.ordinal + position)
                made.append(job.keyer.key(request))
                greedy.append(job.keyer.is_greedy(request))
    return np.array(ordinals, np.int64), keys.as_array(made), np.array(greedy, np.bool_)


def representatives(missing: RequestKeys) -> npt.NDArray[np.bool_]:
    """Which rows are asked: by place, the first of those with the same greedy request, and all sampled."""
    first: npt.NDArray[np.bool_] = np.zeros(len(missing.keys), np.bool_)
    _, places = np.unique(missing.keys, return_index=True)
    first[places] = True
    return first | ~missing.greedy


def _nothing() -> Made:
    return np.empty(0, np.int64), keys.as_array([]), np.empty(0, np.bool_)
