# SPDX-License-Identifier: Apache-2.0
"""Rows that belong together, brought there from wherever they lie in the input.

CPU tasks read the input once, and cut what they read into slices, by a key of each row's request
(`grouping.py`). The slices of all tasks for one range of keys are a *bucket*, which a replica takes instead
of a piece of the input. The queue numbers rows in the order of the buckets; a row is found in the slices, and
written, under its ordinal.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from airflow_provider_raybatch.contract.failures import FailureClass, RaybatchError
from airflow_provider_raybatch.job.input.chunk_rows import ChunkRows
from airflow_provider_raybatch.job.input.reader import Content, Reader, picked
from airflow_provider_raybatch.job.input.survey import Chunk
from airflow_provider_raybatch.job.request.render import needed_columns, render_all
from airflow_provider_raybatch.job.row_order.grouping import Grouping, Keys
from airflow_provider_raybatch.job.scheduling.row_index import Ordinals, no_rows
from airflow_provider_raybatch.job.work import Job, WorkItem

Compact: TypeAlias = npt.NDArray[np.unsignedinteger[Any]]
"""Ordinals in as few bytes as the largest one needs: 4 a row up to 4 billion rows."""
Slice: TypeAlias = list[tuple[Chunk, Ordinals, Content]]
"""What a task has read of the rows of a bucket: what is left of each chunk, with the ordinals of its rows."""


@dataclass(frozen=True)
class Bucket:
    """Rows that a replica reads at once.

    :param ordinal: the queue's number of the first one. The others follow.
    :param ordinals: of all rows, in the order in which they are to begin.
    :param slices: references to the slices in which they are.
    """

    ordinal: int
    ordinals: Compact
    slices: tuple[Any, ...]

    @property
    def rows(self) -> int:
        """Number of rows."""
        return len(self.ordinals)


@dataclass(frozen=True)
class Cut:
    """How tasks cut the input, by what a row is asked first.

    :param ordinal_type: the numpy type of :data:`Compact`.
    """

    job: Job
    grouping: Grouping
    ordinal_type: np.dtype[Any]


@dataclass
class BucketKeys:
    """What a task tells of a slice."""

    ordinals: Compact
    keys: Keys


def slices(items: Sequence[WorkItem], cut: Cut) -> list[Any]:
    """Read rows, and cut them into slices.

    :returns: a list of :class:`BucketKeys`, one a bucket, and then the slice for each bucket.
    :raises StorageError: the source can't be read, or is no longer what it was.
    """
    grouping = cut.grouping
    job = cut.job.first
    spec = job.spec
    reader = Reader(job.listing, needed_columns(spec), job.credentials, texts=spec.text_columns())
    render = job.task.renderer()
    read: deque[tuple[Chunk, Ordinals, Content]] = deque()
    keys: list[Keys] = []
    for item in items:
        content = reader.content(item.chunk)
        rows = reader.rows(item.chunk, content, item.positions).rows
        keys.append(grouping.keys(render_all(render, rows)))
        read.append((item.chunk, item.chunk.ordinal + np.array(item.positions, np.int64), content))
    key, ordinal = np.concatenate(keys), _ordinals(read)
    bucket_of = grouping.bucket_of(key, ordinal)
    places = [np.flatnonzero(bucket_of == bucket) for bucket in range(grouping.buckets)]
    found = [BucketKeys(ordinal[rows].astype(cut.ordinal_type), key[rows]) for rows in places]
    made: list[Slice] = [[] for _ in places]
    first = 0
    while read:  # one after the other, so that what is cut is not kept
        chunk, ordinals, content = read.popleft()
        own = bucket_of[first : first + len(ordinals)]
        first += len(ordinals)
        for bucket in np.unique(own).tolist():
            chosen = ordinals[own == bucket]
            made[bucket].append((chunk, chosen, picked(content, (chosen - chunk.ordinal).tolist())))
    return [found, *made]


def _ordinals(contents: Iterable[tuple[Chunk, Ordinals, Content]]) -> Ordinals:
    return np.concatenate([no_rows(), *(ordinals for _, ordinals, _ in contents)])


def buckets(
    found: Sequence[Sequence[BucketKeys]], references: Sequence[Sequence[Any]], most: float
) -> list[Bucket]:
    """Put slices together.

    :param found: of each task in turn.
    :param references: to the slices of each task.
    :param most: rows of a bucket. Where one range of keys has more, they come in several, by task.
    """
    made: list[Bucket] = []
    number = 0
    for place, of_tasks in enumerate(zip(*found, strict=True)):
        for tasks in _packed([len(one.ordinals) for one in of_tasks], most):
            ordinals = np.concatenate([of_tasks[task].ordinals for task in tasks])
            keys = np.concatenate([of_tasks[task].keys for task in tasks])
            ordered = ordinals[np.lexsort((ordinals, keys))]
            made.append(Bucket(number, ordered, tuple(references[task][place] for task in tasks)))
            number += len(ordered)
    return made


def _packed(rows: Sequence[int], most: float) -> list[list[int]]:
    """Tasks that have rows, in runs with at most so many rows together, or of a single task."""
    runs: list[list[int]] = []
    together = 0
    for task, count in enumerate(rows):
        if not count:
            continue
        if not runs or together + count > most:
            runs.append([])
            together = 0
        runs[-1].append(task)
        together += count
    return runs


class Gathered:
    """The rows of a bucket's slices in a replica's memory."""

    def __init__(self, slices: Iterable[Slice]) -> None:
        self._contents = [content for one in slices for content in one]
        sizes = [len(ordinals) for _, ordinals, _ in self._contents]
        ordinals = _ordinals(self._contents)
        self._order = np.argsort(ordinals)
        self._ordinals = ordinals[self._order]
        self._content = np.repeat(np.arange(len(sizes)), sizes)[self._order]
        self._place = np.concatenate([no_rows(), *map(np.arange, sizes)])[self._order]

    def rows(self, reader: Reader, ordinals: Ordinals) -> list[tuple[ChunkRows, int, int]]:
        """Rows by their ordinals, each as what was read with it, its place there, and its ordinal.

        :raises RaybatchError: one is missing.
        """
        if not np.isin(ordinals, self._ordinals).all():
            # A slice was lost with its node, and the task that made it again has put rows elsewhere.
            raise RaybatchError(
                "prompt_function: it was called again for rows whose prompts were lost with a node, and made "
                "others of them; make it give the same for the same row.",
                FailureClass.USER_ERROR,
            )
        at: Ordinals = np.asarray(np.searchsorted(self._ordinals, ordinals), np.int64)
        contents = self._content[at]
        found: list[Any] = [None] * len(ordinals)
        for number in np.unique(contents).tolist():
            chunk, _, content = self._contents[number]
            places = np.flatnonzero(contents == number)
            rows = reader.rows(chunk, content, self._place[at[places]].tolist())
            for within, place in enumerate(places.tolist()):
                found[place] = (rows, within, int(ordinals[place]))
        return found
