# SPDX-License-Identifier: Apache-2.0
"""Request keys of rows, computed on CPUs before an engine starts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from airflow_provider_raybatch.job.input.reader import Reader
from airflow_provider_raybatch.job.request import keys
from airflow_provider_raybatch.job.request.key_array import Keys
from airflow_provider_raybatch.job.request.render import needed_columns, render_all
from airflow_provider_raybatch.job.row import Request
from airflow_provider_raybatch.job.work import Job, Spread, WorkItem, in_sequence

_CHUNKS_PER_TASK = 16


@dataclass(frozen=True)
class RequestKeys:
    """The keys of rows, 25 bytes each, without rows that make no request.

    :param ordinals: of the rows, ascending.
    :param keys: each row's key; equal sampled requests have equal ones until :meth:`numbered` is called.
    :param greedy: whether the request always gives the same response.
    """

    ordinals: npt.NDArray[np.int64]
    keys: Keys
    greedy: npt.NDArray[np.bool_]

    def where(self, chosen: npt.NDArray[np.bool_] | npt.NDArray[np.int64]) -> RequestKeys:
        """Some of them, by place."""
        return RequestKeys(self.ordinals[chosen], self.keys[chosen], self.greedy[chosen])

    def numbered(self, numbers: npt.NDArray[np.int64]) -> RequestKeys:
        """With a distinct key for each sampled request that repeats an earlier one.

        :param numbers: by place, how many earlier rows make the same request.
        """
        return RequestKeys(self.ordinals, keys.disambiguate(self.keys, numbers), self.greedy)


def request_keys(
    job: Job, items: Sequence[WorkItem], spread: Spread[RequestKeys] = in_sequence
) -> RequestKeys:
    """Render rows and make their keys.

    :param items: which rows, in input order, cut into chunks of ``ROWS_PER_CHUNK``.
    :param spread: applies a function to groups of items.
    :raises StorageError: the source can't be read, or is no longer what it was.
    """
    groups = [items[start : start + _CHUNKS_PER_TASK] for start in range(0, len(items), _CHUNKS_PER_TASK)]
    rows = sum(item.rows for item in items)
    # Filled in place: of millions of rows, a second copy would be what needs most memory.
    whole = RequestKeys(np.empty(rows, np.int64), np.empty(rows, "S16"), np.empty(rows, np.bool_))
    stop = 0
    for made in spread(keys_of, groups, job):
        start, stop = stop, stop + len(made.ordinals)
        whole.ordinals[start:stop] = made.ordinals
        whole.keys[start:stop] = made.keys
        whole.greedy[start:stop] = made.greedy
    return RequestKeys(whole.ordinals[:stop], whole.keys[:stop], whole.greedy[:stop])


def keys_of(items: Sequence[WorkItem], job: Job) -> RequestKeys:
    """The keys of the rows of `items` that make a request."""
    reader = Reader(job.listing, needed_columns(job.spec), job.credentials, whole=False)
    render = job.task.renderer()
    ordinals: list[int] = []
    made: list[bytes] = []
    greedy: list[bool] = []
    for item in items:
        positions = item.positions
        chosen = reader.rows(item.chunk, reader.content(item.chunk), positions).rows
        for position, request in zip(positions, render_all(render, chosen), strict=True):
            if isinstance(request, Request):
                ordinals.append(item.chunk.ordinal + position)
                made.append(job.keyer.key(request))
                greedy.append(job.keyer.is_greedy(request))
    return RequestKeys(np.array(ordinals, np.int64), keys.as_array(made), np.array(greedy, np.bool_))
