# SPDX-License-Identifier: Apache-2.0
"""The state that decides how a search continues, in a comparable form."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from concurrent.futures import Future
from typing import Any

import numpy as np

from airflow_provider_raybatch.job.input.survey import Chunk

from .search_replica import Stepped

_LEFT_OUT = {
    # The input, and values derived from it alone.
    *("_input", "_folder", "_part_folder", "_pieces", "_order", "_row_bytes"),
    # Values that are only passed on, or follow from the rest.
    *("_reports", "_news", "_speeds", "_ahead", "_engine", "_reported", "_threads", "_places"),
    # Instants: `World.state` has what matters.
    *("_looked", "_silence", "_since", "since"),
    # No call is made here; it keeps the instants at which processes were heard of.
    "_call",
}  # fmt: skip


def frozen(value: Any) -> Hashable:
    """Return a value that is equal if all later decisions are equal."""
    if value is None or isinstance(value, str | bytes | int | float):
        return value
    if isinstance(value, np.ndarray):
        return value.tobytes()
    if isinstance(value, Stepped):
        return value.process
    if isinstance(value, Future):
        return value.done()
    if isinstance(value, dict):
        return tuple(sorted((key, frozen(one)) for key, one in value.items()))
    if isinstance(value, list | tuple | deque):
        return tuple(frozen(one) for one in value)
    if isinstance(value, set | frozenset):
        return frozenset(value)
    if isinstance(value, Chunk):
        return value.ordinal
    return tuple(frozen(one) for name, one in vars(value).items() if name not in _LEFT_OUT)


def of_replica(replica: Stepped) -> Hashable:
    """Return the state of a process."""
    worker = replica.worker
    if worker is None:
        return replica.process, replica._has_left
    inflight, contents, shared = worker._inflight, worker._prefetcher.contents, worker._shared
    return (
        replica.process,
        replica.draining.is_set(),
        replica.asked_to_ask.is_set(),
        tuple(row.ordinal for row in inflight.waiting),
        tuple(row.ordinal for row in inflight.inside.values()),
        tuple(row.ordinal for row in inflight.landed),
        tuple(worker._finished),
        replica.report.rows,
        len(worker._new_parts),
        worker._ask_below,
        worker._ask_at > replica.loop.now,
        worker._is_over,
        worker.leaves,
        tuple((key, tuple(row.ordinal for row in rows)) for key, rows in sorted(shared._waiting.items())),
        frozenset(shared._mine),
        frozenset(shared._written),
        worker._is_awaited,
        frozenset(contents._read),
        frozenset(contents._released),
        frozenset(contents.chunks),
    )
