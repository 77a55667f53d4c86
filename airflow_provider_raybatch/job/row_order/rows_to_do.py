# SPDX-License-Identifier: Apache-2.0
"""The rows that are left to do, as the coordinator gives them out, and brought together before.

Rows belong together by prefix, or by length of answer. CPU tasks read the input into buckets (`buckets.py`)
in Ray's object store. Replicas take rows from there and read nothing from storage. Slices that are lost with
a node, Ray makes again by the task that made them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import ray

from airflow_provider_raybatch.job.input.listing import Listing
from airflow_provider_raybatch.job.input.survey import Chunk, Source
from airflow_provider_raybatch.job.parts.ledger import RowMask
from airflow_provider_raybatch.job.planning.plan import Plan
from airflow_provider_raybatch.job.request.key_array import Keys
from airflow_provider_raybatch.job.request.keys import Repetitions
from airflow_provider_raybatch.job.row_order import buckets
from airflow_provider_raybatch.job.row_order.buckets import Bucket
from airflow_provider_raybatch.job.row_order.grouping import LONG, ByAdapter, ByLength, ByPrefix, Grouping
from airflow_provider_raybatch.job.scheduling.prefetch_target import WINDOW
from airflow_provider_raybatch.job.scheduling.row_index import Ordinals, RowIndex
from airflow_provider_raybatch.job.work import Job, WorkItem

_ROWS_OF_TEXT = 1024
"""Rows of a text file that are read at once. A row group of Parquet, or a batch of Arrow, can only be decoded
whole."""
_WHOLE = 2**62


class AnsweredBefore(Protocol):
    """Where answers are that were there before the job."""

    def places(self) -> Iterable[tuple[Any, Keys]]:
        """The keys of their requests, by the file that has them."""


@dataclass(frozen=True)
class Input:
    """The rows to be done. The queue numbers them in the order of `chunks`.

    :param chunks: what is read at once: in the order of the input, or in buckets.
    :param sizes: bytes of each.
    :param done_mask: for each row whether nothing is to be done for it, a bit each.
    :param repetitions: by number of a row, how many rows before it ask the same sampled request.
    :param in_order: whether rows are to begin in the order of their numbers.
    :param earlier: which requests have answers, for those that are known only when they arise.
    """

    chunks: Sequence[Chunk] | Sequence[Bucket]
    sizes: Sequence[int]
    done_mask: npt.NDArray[np.uint8]
    repetitions: Repetitions = field(default_factory=Repetitions)
    in_order: bool = False
    earlier: AnsweredBefore | None = None

    def pieces(self) -> RowIndex:
        """The rows as the queue sees them."""
        rows = [chunk.rows for chunk in self.chunks]
        done = np.unpackbits(self.done_mask, count=sum(rows)).astype(np.bool_)
        return RowIndex(rows, self.sizes, done, self.in_order)

    def numbers(self, ordinals: Ordinals) -> Ordinals:
        """The numbers of rows of the input, in the queue's order."""
        order = [chunk.ordinals for chunk in self.chunks if isinstance(chunk, Bucket)]
        return np.flatnonzero(np.isin(np.concatenate(order), ordinals)) if order else ordinals


def input_of(source: Source, done_mask: RowMask, repetitions: Repetitions | None = None) -> Input:
    """What is left to do of an input, without the rows of `done_mask`."""
    chunks = source.chunks(_WHOLE if source.listing.has_groups else _ROWS_OF_TEXT)
    return Input(chunks, _sizes(source.listing, chunks), np.packbits(done_mask), repetitions or Repetitions())


def _sizes(listing: Listing, chunks: Sequence[Chunk]) -> list[int]:
    """Bytes of each chunk: of Parquet or Arrow, its share of the file's rows."""
    rows: dict[int, int] = {}
    for chunk in chunks:
        rows[chunk.file] = rows.get(chunk.file, 0) + chunk.rows
    return [
        chunk.stop - chunk.start
        if chunk.group < 0
        else listing.files[chunk.file].size * chunk.rows // rows[chunk.file]
        for chunk in chunks
    ]


CutInTasks: TypeAlias = Callable[[Sequence[Sequence[WorkItem]], buckets.Cut], Iterable[tuple[Any, list[Any]]]]
"""Cuts each group: the keys of its slices, and references to them."""

_MOST_BYTES = 8 * 2**30
"""Of input. Parts of regrouped rows have ordinals from all over the input, so each published file is made of
pieces of all parts: the more files, the more often publishing reads parts."""
_AT_ONCE_BYTES = 64 * 2**20
"""Of input that a task reads, and of a bucket of prompts that begin alike."""
_IN_DRIVER_BYTES = 8 * 2**20
"""Of input that the driver cuts itself, since a task's process takes longer to start."""
_MOST_CHUNKS = 64
"""That a task reads, so that very small files are read side by side."""
_LEAST_SLICE = 2**17
"""Bytes of what a task makes for one bucket. Ray keeps less than 100 KB in the driver's memory."""
_MOST_DECKS = 512
_ROWS_A_CPU, _ROWS_IN_DRIVER = 100_000, 20_000
"""That are read for their lengths: short ones take 60 microseconds, however little they take on disk."""


def grouping_for(
    todo: Input, plan: Plan, prefix: int, lengths: Sequence[int], swaps_adapters: bool = False
) -> Grouping | None:
    """How rows are to be grouped; ``None`` if they may stay in the order of the input, or are too many.

    The order of lengths saves at most the time of the longest answer, so it pays only where all CPUs of the
    cluster read the input at one go.

    :param todo: the rows in the order of the input.
    :param prefix: characters that distinguish groups of prompts; 0 where few prompts begin alike.
    :param lengths: a sample of the rows' keys; empty where their answers may all be equally long.
    :param swaps_adapters: whether an engine holds fewer adapters at once than rows ask for.
    """
    pieces = todo.pieces()
    rows, total = int(pieces.left.sum()), pieces.total_bytes
    at_once = plan.replicas * WINDOW * plan.rows_in_engine
    if not (prefix or lengths or swaps_adapters) or (plan.replicas == 1 and rows <= at_once):
        return None
    resources = ray.cluster_resources()
    if total > min(_MOST_BYTES, resources.get("object_store_memory", 0) / 2):
        return None
    buckets_of_bytes = max(1, math.ceil(total / _AT_ONCE_BYTES))
    if swaps_adapters:
        return ByAdapter(prefix or LONG, max(plan.replicas, buckets_of_bytes))
    if prefix:
        return ByPrefix(prefix, buckets_of_bytes)
    cpus = resources.get("CPU", 0)
    files = {chunk.file for chunk in todo.chunks if isinstance(chunk, Chunk)}
    if total > cpus * _AT_ONCE_BYTES or rows > cpus * _ROWS_A_CPU or len(files) > cpus * _MOST_CHUNKS:
        return None
    return by_length(lengths, rows, total, plan.replicas, plan.rows_in_engine)


def by_length(sample: Sequence[int], rows: int, total: int, replicas: int, slots: int) -> ByLength:
    """How rows are grouped by length.

    :param sample: sorted keys of some rows.
    :param total: bytes of all rows.
    :param slots: rows that a replica's engine runs at once.
    """
    dealt = min(1.0, replicas * WINDOW * slots / rows)
    others = min(math.ceil((1 - dealt) * rows / slots), math.ceil(min(total, _AT_ONCE_BYTES) / _LEAST_SLICE))
    return ByLength(tuple(sample), min(_MOST_DECKS, replicas), dealt, others)


def regrouped(
    job: Job, items: Sequence[WorkItem], todo: Input, grouping: Grouping, cut_in_tasks: CutInTasks
) -> Input:
    """The rows to do in buckets.

    :param items: these rows, cut into chunks of ``ROWS_PER_CHUNK``.
    :param todo: these rows in the order of the input.
    :param cut_in_tasks: cuts groups of items in tasks on the cluster.
    :raises StorageError: the source can't be read, or is no longer what it was.
    """
    pieces, last = todo.pieces(), items[-1].chunk
    total, rows = pieces.total_bytes, int(pieces.left.sum())
    groups = _groups(items, rows / max(1, math.ceil(total / _AT_ONCE_BYTES)))
    cut = buckets.Cut(job, grouping, np.min_scalar_type(last.ordinal + last.rows))
    is_little = len(groups) == 1 and total <= _IN_DRIVER_BYTES and rows <= _ROWS_IN_DRIVER
    in_driver = is_little and job.spec.prompt_function is None  # which only tasks call
    if in_driver:
        keys, *slices = buckets.slices(items, cut)
        made = [(keys, [ray.put(one) for one in slices])]
    else:
        made = list(cut_in_tasks(groups, cut))
    together = buckets.buckets(
        [keys for keys, _ in made], [slices for _, slices in made], 2 * rows / grouping.buckets
    )
    return replace(in_buckets(together, total / rows, todo.repetitions), in_order=grouping.in_order)


def _groups(items: Sequence[WorkItem], most: float) -> list[list[WorkItem]]:
    """What each task reads: at most so many rows, where that is more than one chunk."""
    groups: list[list[WorkItem]] = []
    together = 0
    for item in items:
        together += item.rows
        if not groups or together > most or len(groups[-1]) == _MOST_CHUNKS:
            groups.append([])
            together = item.rows
        groups[-1].append(item)
    return groups


def in_buckets(together: Sequence[buckets.Bucket], row_bytes: float, repetitions: Repetitions) -> Input:
    """The rows to do, numbered in the order of buckets; `row_bytes` are those of a row in the mean."""
    found = [repetitions.among(bucket.ordinals) for bucket in together]
    return Input(
        together,
        [math.ceil(row_bytes * bucket.rows) for bucket in together],
        np.packbits(np.zeros(sum(bucket.rows for bucket in together), np.bool_)),
        Repetitions(
            np.concatenate([bucket.ordinal + at for bucket, (at, _) in zip(together, found, strict=True)]),
            np.concatenate([numbers for _, numbers in found]),
        ),
    )
