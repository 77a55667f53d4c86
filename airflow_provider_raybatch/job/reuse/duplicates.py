# SPDX-License-Identifier: Apache-2.0
"""Rows that make the same request as an earlier row.

Finding them takes the keys of all rows. So the first attempt that makes these keys keeps what it found, and
which older parts it searched, beside its parts. A resume needs only the keys of its missing rows, or none.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from airflow_provider_raybatch.contract.layout import DUPLICATES
from airflow_provider_raybatch.job.input.table import as_parquet
from airflow_provider_raybatch.job.request import key_array, keys
from airflow_provider_raybatch.job.request.key_array import Keys
from airflow_provider_raybatch.job.reuse.partitions import Arrays, Partitions
from airflow_provider_raybatch.job.reuse.row_keys import RequestKeys, ranges_for
from airflow_provider_raybatch.storage.checksum import checked, with_checksum
from airflow_provider_raybatch.storage.entry import Entry
from airflow_provider_raybatch.storage.folder import Folder

_NOTE = b"raybatch.search"
Ordinals: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Repeats(Arrays):
    """Rows that make the same request as an earlier row.

    :param first: the first row with the same request.
    :param numbers: how many earlier rows make the same request, if it is sampled, so that each gets a
        response of its own; 0 if it is greedy, so that all share one.
    """

    KIND: ClassVar[np.dtype[Any]] = np.dtype([
        ("ordinals", "i8"),
        ("first", "i8"),
        ("keys", "S16"),
        ("numbers", "i4"),
    ])

    ordinals: Ordinals
    first: Ordinals
    keys: Keys
    numbers: Ordinals

    def numbers_of(self, ordinals: Ordinals) -> Ordinals:
        """For each of these, how many earlier rows make the same sampled request."""
        found: Ordinals = np.zeros(len(ordinals), np.int64)
        there = np.isin(ordinals, self.ordinals)
        order = np.argsort(self.ordinals)
        found[there] = self.numbers[order][np.searchsorted(self.ordinals[order], ordinals[there])]
        return found


@dataclass(frozen=True)
class Followers(Arrays):
    """Rows that get the outcome of an equal row of the input.

    :param leaders: the rows that have or get the outcomes.
    :param keys: of both.
    """

    KIND: ClassVar[np.dtype[Any]] = np.dtype([("ordinals", "i8"), ("leaders", "i8"), ("keys", "S16")])

    ordinals: Ordinals
    leaders: Ordinals
    keys: Keys

    def asking_now(self, own: RequestKeys) -> Followers:
        """Those that ask what their leader asks, by keys that were made again.

        They get these keys, but rows that make no request any more, as their leader, keep theirs.
        """
        keys = own.of(self.ordinals)
        same = keys == own.of(self.leaders)
        return Followers(self.ordinals, self.leaders, np.where(keys == b"", self.keys, keys)).where(same)


Chosen: TypeAlias = Callable[[Ordinals], npt.NDArray[np.bool_]]
"""Which rows, by ordinal."""


def _all(ordinals: Ordinals) -> npt.NDArray[np.bool_]:
    return np.ones(len(ordinals), np.bool_)


def followers_of(repeats: Repeats, wanted: Chosen = _all, may_lead: Chosen = _all) -> Followers:
    """The rows that can share another row's outcome.

    :param repeats: includes all rows that ask the same as one of them.
    :param wanted: rows that need an outcome.
    :param may_lead: rows that have or get one; the first of equal rows leads the others.
    """
    greedy = repeats.where(repeats.numbers == 0)
    first, own = greedy.first, greedy.keys
    members, places = np.unique(np.concatenate([greedy.ordinals, first]), return_index=True)
    groups = np.concatenate([first, first])[places]
    members_keys = np.concatenate([own, own])[places]
    leading = may_lead(members)
    led, lowest = np.unique(groups[leading], return_index=True)  # members ascend: the first is the lowest
    leaders = members[leading][lowest]
    place: Ordinals = np.asarray(np.searchsorted(led, groups), np.int64)
    found = np.flatnonzero(wanted(members) & np.isin(groups, led))
    found = found[leaders[place[found]] != members[found]]
    return Followers(members[found], leaders[place[found]], members_keys[found])


def repeats_of(some: RequestKeys) -> Repeats:
    """Find them.

    :param some: rows that include all equal ones. Ordinals ascend; keys are not yet numbered.
    """
    places = np.flatnonzero(some.greedy)
    high, low = key_array.halves(some.keys[places])
    order = places[np.lexsort((low, high))]  # stable: equal keys stay in input order
    own = some.keys[order]
    is_first = np.r_[np.ones(min(1, len(order)), np.bool_), own[1:] != own[:-1]]
    leader = order[np.flatnonzero(is_first)[np.cumsum(is_first) - 1]]
    numbers = keys.repetitions(some.keys, ~some.greedy)
    sampled = np.flatnonzero(numbers)
    rows, leaders = np.r_[order[~is_first], sampled], np.r_[leader[~is_first], sampled]
    return Repeats(some.ordinals[rows], some.ordinals[leaders], some.keys[rows], numbers[rows])


@dataclass(frozen=True)
class Search:
    """What is known about duplicates without making the keys of all rows.

    :param repeats: in ranges of keys.
    :param rows: of the input when its keys were made; a `limit` may have cut it.
    :param searched: paths of the searched parts of other inputs and configurations.
    """

    repeats: Partitions[Repeats]
    rows: int
    searched: frozenset[str]

    def write(self, folder: Folder, part_folder: str) -> None:
        """Keep it for later attempts, a file for each range; call it after all cached responses are written.

        :param part_folder: of this driver.
        """
        files = self.repeats.number
        for number, found in enumerate(self.repeats):
            table = pa.table({
                "ordinal": found.ordinals,
                "first": found.first,
                "number": found.numbers,
                "key": key_array.to_arrow(found.keys),
            })
            is_last = number == files - 1
            searched = sorted(self.searched) if is_last else []
            note = json.dumps({"rows": self.rows, "searched": searched, "files": files})
            content = as_parquet(table.replace_schema_metadata({_NOTE: note}), compression="zstd")
            name = f"{f'{number}-' if files > 1 else ''}{DUPLICATES}"
            folder.write(f"{part_folder}/{name}", with_checksum(content))


def read_search(folder: Folder, entries: Iterable[Entry], rows: int) -> Search | None:
    """What earlier attempts have kept; ``None`` if that does not cover all `rows` of the input.

    :param entries: the files of one input and one set of requests.
    """
    kept: dict[str, list[Entry]] = {}
    for entry in entries:
        if entry.path.endswith(DUPLICATES):
            kept.setdefault(entry.path.rpartition("/")[0], []).append(entry)
    found: Search | None = None
    for files in kept.values():
        if (one := _read(folder, files, rows)) is not None:
            found = replace(one, searched=one.searched | (found.searched if found else frozenset()))
    return found


def forget_search(folder: Folder, run_folder: str) -> None:
    """Let the next attempt make all keys again, since rows that were equal ask different things now.

    :raises StorageError: the files can't be listed or deleted.
    """
    folder.delete(file.path for file in folder.list(run_folder) if file.path.endswith(DUPLICATES))


def _read(folder: Folder, files: Sequence[Entry], rows: int) -> Search | None:
    """The search of one driver, if all of its files are there and cover the input."""
    number = ranges_for(rows)
    found = Partitions(Repeats, number)
    searched: set[str] = set()
    for entry in files:
        with folder.open(entry.path, entry.size) as stream:  # a large one by several requests
            content = stream.read()
        try:
            table = pq.read_table(io.BytesIO(checked(content)))
            note = json.loads((table.schema.metadata or {})[_NOTE])
            if note["rows"] < rows or note["files"] != len(files):
                return None
            searched.update(note["searched"])
            ordinals, first, numbers = (table[name].to_numpy() for name in ("ordinal", "first", "number"))
            own = key_array.from_arrow(table["key"].combine_chunks())
            near = Repeats(ordinals, first, own, numbers).where(ordinals < rows)
            found.add(near, key_array.range_of(near.keys, number))
        except (pa.ArrowException, OSError, LookupError, ValueError):
            return None  # damaged: all keys are made again
    return Search(found, rows, frozenset(searched))
