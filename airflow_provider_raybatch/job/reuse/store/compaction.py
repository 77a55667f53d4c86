# SPDX-License-Identifier: Apache-2.0
"""Keep the store small: merge small segments, drop what expired, delete data that nothing points to.

Runs beside readers, writers and other compactions, without a lock. Why nothing is lost:

- An entry is a fact that is true wherever it stands, so having it twice does no harm. A merge writes new
  segments under new names, and deletes the old ones only when all of these are written. At every instant each
  entry that has not expired stands in some segment, and readers list until they see nothing new
  (:func:`index.visit`).
- Of two merges of the same segments, the slower finds one of them gone, and takes back what it wrote: all of
  it stands in the segments it has read from or in their successors, since it has deleted none.
- Data is written before the index names it. So a data file is deleted only if no segment names it (data is
  listed first, the index read afterwards) and it was stored more than a grace period ago: longer than an add
  takes to come to its index. What expires or is surpassed by a newer answer stays in the index for a grace
  period, too: longer than a reader takes from look-up to reading.
- Should a clock or a pause break one of these periods, a reader finds the file gone and takes a miss. The
  row's own key decides what is a hit, so a wrong response is not among the things that can go wrong.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from airflow_provider_raybatch.contract.layout import STORE_DATA, STORE_INDEX
from airflow_provider_raybatch.job.reuse.store import data, segment
from airflow_provider_raybatch.job.reuse.store.files import UnusableError, in_order, reading
from airflow_provider_raybatch.job.reuse.store.index import segments, visit
from airflow_provider_raybatch.job.reuse.store.segment import (
    ROWS_PER_SEGMENT,
    Entries,
    Segment,
    by_key,
    concat,
)
from airflow_provider_raybatch.storage.folder import Entry, Folder

GRACE = 24 * 3600.0
"""Seconds; see above."""
MANY = 16
"""So many small segments are left as they are."""
_SMALL_BYTES = ROWS_PER_SEGMENT // 2 * 20


@dataclass(frozen=True)
class Compacted:
    """What a compaction did: segments merged and made of them, data and scratch files deleted."""

    merged: int = 0
    made: int = 0
    deleted: int = 0


def is_due(folder: Folder) -> bool:
    """Whether there are more small segments than need be."""
    return sum(entry.size < _SMALL_BYTES for entry in segments(folder)) > MANY


def compact(folder: Folder, now: float, unusable: list[str], grace: float = GRACE) -> Compacted:
    """Merge, then delete what nothing points to.

    :param unusable: gets a clause on each file that can't be understood; it is left alone.
    :raises StorageError: the store doesn't answer. Then nothing is lost; some of the work may be done.
    """
    merged, made = _merge(folder, now, grace)
    return Compacted(merged, made, _sweep(folder, now, grace, unusable))


def surviving(entries: Entries, now: float, grace: float) -> Entries:
    """Sorted entries without the doubles, the expired and the surpassed.

    Surpassed is what a newer answer to the same key outlives. One that expires sooner does not: the older one
    was meant to be kept, and counts again afterwards.
    """
    entries = by_key(entries.take(entries.until > now - grace))
    if not len(entries):
        return entries
    first: npt.NDArray[np.bool_] = np.ones(len(entries), dtype=np.bool_)
    first[1:] = entries.keys[1:] != entries.keys[:-1]
    double = ~first
    for column in (entries.file, entries.row, entries.at):
        double[1:] &= column[1:] == column[:-1]
    newest = np.maximum.accumulate(np.where(first, np.arange(len(entries)), 0))
    surpassed = ~first & (entries.until <= entries.until[newest]) & (entries.at[newest] < now - grace)
    return entries.take(~double & ~surpassed)


def _merge(folder: Folder, now: float, grace: float) -> tuple[int, int]:
    """:returns: how many segments were merged, and into how many."""
    opened = [one for one in in_order(_opening(folder, entry) for entry in segments(folder)) if one]
    dropping = [one for one in opened if one[1].first_expiry <= now - grace]
    chosen = [one for one in opened if one[0].size < _SMALL_BYTES or one in dropping]
    if len(chosen) < 2 and not dropping:
        return 0, 0
    name, made = f"{STORE_INDEX}/merged-{uuid.uuid4().hex}", list[str]()
    # Keys are hashes, so equal shares of their range hold about equally many.
    shares = -(-sum(one.rows for _, one in chosen) // ROWS_PER_SEGMENT)
    borders = [2**64 * share // shares for share in range(shares + 1)]
    try:
        for first, stop in pairwise(borders):
            found = concat(list(in_order(_between(folder, one, first, stop - 1) for one in chosen)))
            kept = surviving(found, now, grace)
            for start in range(0, len(kept), ROWS_PER_SEGMENT):
                path = f"{name}-{len(made):04d}.parquet"
                segment.write(folder, path, kept.take(slice(start, start + ROWS_PER_SEGMENT)))
                made.append(path)
    except UnusableError:
        folder.delete(made)
        return 0, 0
    folder.delete([entry.path for entry, _ in chosen])
    return len(chosen), len(made)


def _sweep(folder: Folder, now: float, grace: float, unusable: list[str]) -> int:
    """:returns: how many data files, and scratch files of dead writers, were deleted."""
    files = [entry for entry in folder.list(STORE_DATA) if entry.path.endswith(".parquet")]
    before = len(unusable)
    named = {name for names in visit(folder, lambda one: one.files, unusable) for name in names}
    if len(unusable) > before:
        return 0  # nobody knows what such a segment names
    loose = [entry for entry in files if entry.path not in named]
    old = {
        path
        for path, stored in in_order(_stored(folder, entry) for entry in loose)
        if stored is not None and stored < now - grace
    }
    # The marks stay: a cleared task still has these rows, and would store them anew, as young ones.
    scratch = folder.abandoned(grace)
    folder.delete([*sorted(old), *scratch])
    return len(old) + len(scratch)


def _opening(folder: Folder, entry: Entry) -> Callable[[], tuple[Entry, Segment] | None]:
    def task() -> tuple[Entry, Segment] | None:
        try:
            return entry, reading(folder, entry, lambda: Segment(folder, entry))
        except UnusableError:
            return None

    return task


def _between(folder: Folder, one: tuple[Entry, Segment], first: int, last: int) -> Callable[[], Entries]:
    return lambda: reading(folder, one[0], lambda: one[1].between(first, last))


def _stored(folder: Folder, entry: Entry) -> Callable[[], tuple[str, int | None]]:
    def task() -> tuple[str, int | None]:
        try:
            return entry.path, data.newest(folder, entry)
        except UnusableError:
            return entry.path, None

    return task
