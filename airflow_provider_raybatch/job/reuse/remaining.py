# SPDX-License-Identifier: Apache-2.0
"""What is left to do of an input."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping

import numpy as np

from airflow_provider_raybatch.job.input.source import Source
from airflow_provider_raybatch.job.parts.ledger import Rows
from airflow_provider_raybatch.job.work import WorkItem


def work(
    source: Source, rows_per_chunk: int, settled: Rows, repetitions: Mapping[int, int] | None = None
) -> list[WorkItem]:
    """What is left to do: chunks without a settled row whole, others with the positions to skip.

    :param settled: rows that are not to be asked.
    :param repetitions: by ordinal, how many rows before it ask the same sampled request.
    """
    repeated = sorted((repetitions or {}).items())
    ordinals = [ordinal for ordinal, _ in repeated]
    items = []
    for number, chunk in enumerate(source.chunks(rows_per_chunk)):
        first, stop = chunk.ordinal, chunk.ordinal + chunk.rows
        done = settled[first:stop]
        if not done.all():
            inside = repeated[bisect_left(ordinals, first) : bisect_left(ordinals, stop)]
            numbers = tuple((ordinal - first, times) for ordinal, times in inside)
            items.append(WorkItem(number, chunk, _runs(done), numbers))
    return items


def _runs(flags: Rows) -> tuple[tuple[int, int], ...]:
    """Where `flags` are true: the first position of each run, and one past its last."""
    borders = np.flatnonzero(np.diff(flags, prepend=False, append=False)).tolist()
    return tuple(zip(borders[::2], borders[1::2], strict=True))
