# SPDX-License-Identifier: Apache-2.0
"""Look up keys in all segments of the index.

Memory depends on the number of keys, not on the size of the store. A fixed number of segments is read
concurrently; of each, at most its 10 MB as stored and one decoded row group are in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import numpy as np

from airflow_provider_raybatch.contract.layout import STORE_INDEX
from airflow_provider_raybatch.job.request import key_array
from airflow_provider_raybatch.job.request.key_array import Half, Keys
from airflow_provider_raybatch.job.reuse.store.files import FileChangedError, reading, usable
from airflow_provider_raybatch.job.reuse.store.segment import Entries, Int, Segment, concat
from airflow_provider_raybatch.storage.errors import StorageError
from airflow_provider_raybatch.storage.file import Entry
from airflow_provider_raybatch.storage.folder import Folder

_LISTINGS = 50

T = TypeVar("T")


@dataclass(frozen=True)
class StoreHits:
    """Where the responses to some of the keys are, sorted by file and row.

    :param position: of the key in the array that was looked up.
    :param entries: a position each; `files` are sorted.
    """

    position: Int
    entries: Entries

    def __len__(self) -> int:
        return len(self.position)


def segments(folder: Folder) -> list[Entry]:
    """The files of the index."""
    return [entry for entry in folder.list(STORE_INDEX) if entry.path.endswith(".parquet")]


def visit(folder: Folder, look: Callable[[Segment], T], unusable: list[str]) -> Iterator[T]:
    """What `look` finds in each segment.

    Compaction may replace segments meanwhile. It deletes them only after their entries are in others. So the
    index is listed until a listing shows nothing new; the entries of a deleted segment have then been seen in
    its successor. (A listing is not a snapshot. An entry is missed only if two compactions move it within two
    consecutive listings; it is then paid for again.)

    :param unusable: gets a clause for each file that can't be read; the file is skipped.
    """
    seen: set[Entry] = set()
    for _ in range(_LISTINGS):
        fresh = [entry for entry in segments(folder) if entry not in seen]
        if not fresh:
            return
        seen.update(fresh)
        for found in usable(partial(_look, folder, look), fresh, unusable):
            yield from found
    raise StorageError(f"{folder.uri}/{STORE_INDEX}: it changes faster than it can be read.")


def look_up(folder: Folder, keys: Keys, now: float, max_age: float | None, unusable: list[str]) -> StoreHits:
    """The newest entry that has not expired for each key that has one.

    :param keys: sorted, each once.
    :param max_age: seconds; older entries are misses.
    :param unusable: see :func:`visit`.
    """
    high, low = key_array.halves(keys)
    if np.any((high[1:] < high[:-1]) | ((high[1:] == high[:-1]) & (low[1:] <= low[:-1]))):
        raise ValueError("keys: they must be sorted, each once")
    since = -np.inf if max_age is None else now - max_age
    size, numbers = len(keys), dict[str, int]()
    file, row, at, until = np.full((4, size), -1, dtype=np.int64)
    looks = visit(folder, lambda segment: search(segment, high, low, now, since), unusable)
    for found in looks if size else ():
        position, entries = found.position, found.entries
        newer = entries.at > at[position]
        position, entries = position[newer], entries.take(newer)
        # A segment's list of files may be long, so only files with hits get a number.
        used, local = np.unique(entries.file, return_inverse=True)
        new = [numbers.setdefault(entries.files[one], len(numbers)) for one in used.tolist()]
        file[position] = np.array(new, dtype=np.int64)[local]
        row[position], at[position], until[position] = entries.row, entries.at, entries.until
    hit = np.flatnonzero(file >= 0)
    names = sorted(numbers)
    ranks = {name: rank for rank, name in enumerate(names)}
    rank = np.array([ranks[name] for name in numbers], dtype=np.int64)
    entries = Entries(keys[hit], rank[file[hit]], row[hit], at[hit], until[hit], tuple(names))
    order = np.lexsort((entries.row, entries.file))
    return StoreHits(hit[order], entries.take(order))


def search(segment: Segment, high: Half, low: Half, now: float, since: float) -> StoreHits:
    """The newest entry of each wanted key in one segment; unsorted.

    :param high: first halves of the wanted keys, which are sorted.
    :param low: their second halves.
    :param now: seconds since 1970; entries that expire then or earlier are misses.
    :param since: seconds since 1970; entries that were paid for earlier are misses.
    """
    positions: list[Int] = [np.empty(0, dtype=np.int64)]
    found: list[Entries] = []
    spans = []
    for group in segment.groups:
        smallest, largest = segment.bounds(group)
        first = int(np.searchsorted(high, smallest, "left"))
        last = int(np.searchsorted(high, largest, "right"))
        if first < last:
            spans.append((group, first, last))
    segment.load_for(len(spans))
    for group, first, last in spans:
        entries = segment.read(group)
        position, index = matches((high[first:last], low[first:last]), entries.keys)
        alive = (entries.until[index] > now) & (entries.at[index] >= since)
        positions.append(position[alive] + first)
        found.append(entries.take(index[alive]))
    position, entries = np.concatenate(positions), concat(found)
    order = np.lexsort((-entries.at, position))
    position, entries = position[order], entries.take(order)
    _, newest = np.unique(position, return_index=True)
    return StoreHits(position[newest], entries.take(newest))


def matches(wanted: tuple[Half, Half], keys: Keys) -> tuple[Int, Int]:
    """All pairs of equal keys: positions in `wanted`, given as sorted halves, and in the sorted `keys`.

    The first halves are searched; the few matches are then compared by the second half.

    :raises ValueError: `keys` are not sorted.
    """
    high = key_array.first_halves(keys)
    if np.any(high[1:] < high[:-1]):
        raise ValueError("its keys are not sorted")
    left: Int = np.searchsorted(high, wanted[0], "left")
    # Most keys are in one segment only, so most searches end here.
    near = np.flatnonzero(high[np.minimum(left, len(high) - 1)] == wanted[0])
    left = left[near]
    count = np.searchsorted(high, wanted[0][near], "right") - left
    position: Int = np.repeat(near, count)
    index: Int = np.arange(len(position)) + np.repeat(left - (np.cumsum(count) - count), count)
    same = key_array.halves(keys[index])[1] == wanted[1][position]
    return position[same], index[same]


def _look(folder: Folder, look: Callable[[Segment], T], entry: Entry) -> list[T]:
    """What `look` finds, nothing if compaction has deleted the segment."""
    try:
        return [reading(folder, entry, lambda: look(Segment(folder, entry)))]
    except FileChangedError:
        return []
