# SPDX-License-Identifier: Apache-2.0
"""Bring rows whose prompts begin alike together before replicas take them.

A replica sorts the rows that it gets at once. Rows with a common prefix that lie further apart, or that come
to two replicas, would be computed once in each. So CPU tasks read the input into buckets
(:mod:`~airflow_provider_raybatch.job.execution.buckets`) in Ray's object store. Replicas take rows from there
and read nothing from storage. What is lost with a node, Ray makes again by the task that made it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import ray

from airflow_provider_raybatch.job.execution import buckets
from airflow_provider_raybatch.job.execution.cpu_tasks import spread_in_parts
from airflow_provider_raybatch.job.execution.rows_to_do import Input
from airflow_provider_raybatch.job.execution.share import WINDOW
from airflow_provider_raybatch.job.planning.plan import Plan
from airflow_provider_raybatch.job.request.repetitions import Repetitions
from airflow_provider_raybatch.job.work import Job, WorkItem

_MOST_BYTES = 8 * 2**30
"""Of input. Parts of regrouped rows have ordinals from all over the input. So each published file is made of
pieces of all parts, and publishing reads parts more often, the more files there are."""
_AT_ONCE_BYTES = 64 * 2**20
"""Of input that a task reads, and of a bucket."""
_MOST_CHUNKS = 64
"""That a task reads, so that very small files are read side by side."""
_MOST_TASKS = 64


def pays(todo: Input, plan: Plan) -> bool:
    """Whether rows may come apart, and fit into Ray's object stores.

    :param todo: the rows in the order of the input.
    """
    pieces = todo.pieces()
    is_one_order = plan.replicas == 1 and pieces.left.sum() <= WINDOW * plan.rows_in_engine
    room = ray.cluster_resources().get("object_store_memory", 0) / 2
    return not is_one_order and pieces.total_bytes <= min(room, _MOST_BYTES)


def regrouped(job: Job, items: Sequence[WorkItem], todo: Input, prefix: int) -> Input:
    """The rows to do in buckets.

    :param items: these rows, cut into chunks of ``ROWS_PER_CHUNK``.
    :param todo: these rows in the order of the input.
    :param prefix: characters of a prompt by which they are grouped.
    :raises StorageError: the source can't be read, or is no longer what it was.
    """
    pieces, last = todo.pieces(), items[-1].chunk
    total, rows = pieces.total_bytes, int(pieces.left.sum())
    number = max(1, math.ceil(total / _AT_ONCE_BYTES))
    cut = buckets.Cut(job, prefix, number, np.min_scalar_type(last.ordinal + last.rows))
    at_once = int(min(_MOST_TASKS, max(1, ray.cluster_resources().get("CPU", 1))))
    groups = _groups(items, rows / number)
    made = list(spread_in_parts(buckets.slices, groups, cut, at_once, 1 + number))
    together = buckets.buckets(
        [found for found, _ in made], [slices for _, slices in made], 2 * rows / number
    )
    return in_buckets(together, total / rows, todo.repetitions)


def _groups(items: Sequence[WorkItem], most: float) -> list[list[WorkItem]]:
    """What each task reads.

    :param most: rows of a task that has more than one chunk.
    """
    groups: list[list[WorkItem]] = []
    together = 0
    for item in items:
        together += item.chunk.rows
        if not groups or together > most or len(groups[-1]) == _MOST_CHUNKS:
            groups.append([])
            together = item.chunk.rows
        groups[-1].append(item)
    return groups


def in_buckets(together: Sequence[buckets.Bucket], row_bytes: float, repetitions: Repetitions) -> Input:
    """The rows to do, numbered in the order of buckets.

    :param row_bytes: of a row, in the mean.
    :param repetitions: by ordinal, see :class:`Input`.
    """
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
