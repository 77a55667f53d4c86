# SPDX-License-Identifier: Apache-2.0
"""The rows of an input that still need an engine, as work items."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping

import numpy as np

from airflow_provider_raybatch.job.input.survey import Source
from airflow_provider_raybatch.job.parts.ledger import RowMask
from airflow_provider_raybatch.job.work import WorkItem


def work(
    source: Source, rows_per_chunk: int, resolved: RowMask, repetitions: Mapping[int, int] | None = None
) -> list[WorkItem]:
    """The remaining work: each chunk with the positions to skip; chunks without remaining rows are left out.

    :param resolved: rows that need no request.
    :param repetitions: by ordinal, how many earlier rows make the same sampled request.
    """
    repeated = sorted((repetitions or {}).items())
    ordinals = [ordinal for ordinal, _ in repeated]
    items = []
    for chunk in source.chunks(rows_per_chunk):
        first, stop = chunk.ordinal, chunk.ordinal + chunk.rows
        done = resolved[first:stop]
        if not done.all():
            inside = repeated[bisect_left(ordinals, first) : bisect_left(ordinals, stop)]
            numbers = tuple((ordinal - first, times) for ordinal, times in inside)
            items.append(WorkItem(chunk, _runs(done), numbers))
    return items


def _runs(flags: RowMask) -> tuple[tuple[int, int], ...]:
    """Where `flags` are true: the first position of each run, and one past its last."""
    borders = np.flatnonzero(np.diff(flags, prepend=False, append=False)).tolist()
    return tuple(zip(borders[::2], borders[1::2], strict=True))
