# SPDX-License-Identifier: Apache-2.0
"""Keep the store small: merge small segments, drop what expired, delete data that nothing points to.

Runs concurrently with readers, writers and other compactions, without a lock. Why nothing is lost:

- An entry is valid in any segment, so a duplicate does no harm. A merge writes new segments under new names,
  and deletes the old ones only after all new ones are written. So each entry that has not expired is in some
  segment at all times, and readers list until they see nothing new (:func:`index.visit`).
- Of two merges of the same segments, the slower one finds a segment gone and deletes what it wrote. It has
  deleted nothing else, so all entries are in the segments it read or in their successors.
- Data is written before the index names it. So a data file is deleted only if no segment names it (data is
  listed first, the index read afterwards) and it was stored more than a grace period ago: longer than an add
  takes to come to its index. Expired and superseded entries stay in the index for a grace period, too: longer
  than a reader takes from lookup to reading.
- If a wrong clock or a pause breaks one of these periods, a reader finds the file gone, which is a miss. A
  hit must match the key stored in the row itself, so a reader never gets a wrong response.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from airflow_provider_raybatch.contract.layout import STORE_DATA, STORE_INDEX
from airflow_provider_raybatch.job.reuse.store import segment
from airflow_provider_raybatch.job.reuse.store.files import AT_ONCE, UnusableError, reading, stored_at, usable
from airflow_provider_raybatch.job.reuse.store.index import segments, visit
from airflow_provider_raybatch.job.reuse.store.segment import (
    ROWS_PER_SEGMENT,
    Entries,
    Segment,
    by_key,
    concat,
)
from airflow_provider_raybatch.storage.file import Entry, in_order
from airflow_provider_raybatch.storage.folder import Folder

GRACE = 24 * 3600.0
"""Seconds; see above."""
MANY = 16
"""Up to this many small segments, nothing is merged."""
_SMALL_BYTES = ROWS_PER_SEGMENT // 2 * 20


@dataclass(frozen=True)
class Compacted:
    """What a compaction did: how many segments it merged, how many it made, how many files it deleted."""

    merged: int = 0
    made: int = 0
    deleted: int = 0


def is_due(folder: Folder) -> bool:
    """Whether there are so many small segments that a merge pays off."""
    return sum(entry.size < _SMALL_BYTES for entry in segments(folder)) > MANY


def compact(folder: Folder, now: float, unusable: list[str], grace: float = GRACE) -> Compacted:
    """Merge, then delete what nothing points to. An error loses nothing; part of the work may be done.

    :param unusable: gets a clause for each file that can't be read; the file is left alone.
    """
    merged, made = _merge(folder, now, grace)
    return Compacted(merged, made, _sweep(folder, now, grace, unusable))


def surviving(entries: Entries, now: float, grace: float) -> Entries:
    """Sorted entries without duplicates, expired and superseded ones.

    An entry is superseded by a newer one of the same key that does not expire earlier. If the newer one
    expires first, the older one counts again afterwards.
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
    superseded = ~first & (entries.until <= entries.until[newest]) & (entries.at[newest] < now - grace)
    return entries.take(~double & ~superseded)


def _merge(folder: Folder, now: float, grace: float) -> tuple[int, int]:
    """:returns: how many segments were merged, and into how many."""
    opened = list(usable(partial(_opened, folder), segments(folder), []))
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
            found = concat(list(in_order(partial(_between, folder, first, stop - 1), chosen, AT_ONCE)))
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
    files = [entry.path for entry in folder.list(STORE_DATA)]
    before = len(unusable)
    named = {name for names in visit(folder, lambda one: one.files, unusable) for name in names}
    if len(unusable) > before:
        return 0  # an unreadable segment may name any file
    old = [path for path in files if path not in named and stored_at(path) < now - grace]
    # The marks stay: a cleared task still has these rows, and would store them again with a new age.
    scratch = folder.abandoned(grace)
    folder.delete([*old, *scratch])
    return len(old) + len(scratch)


def _opened(folder: Folder, entry: Entry) -> tuple[Entry, Segment]:
    return entry, reading(folder, entry, lambda: Segment(folder, entry))


def _between(folder: Folder, first: int, last: int, one: tuple[Entry, Segment]) -> Entries:
    return reading(folder, one[0], lambda: one[1].between(first, last))
