# SPDX-License-Identifier: Apache-2.0
"""Rows that make the same request as an earlier row, kept beside the parts for the next attempt.

Finding them takes the keys of all rows. So the first attempt that makes these keys writes what it found, and
which older parts it searched. A resume then needs only the keys of its missing rows, or none.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from airflow_provider_raybatch.contract.layout import DUPLICATES
from airflow_provider_raybatch.job.input.table import as_parquet
from airflow_provider_raybatch.job.parts.ledger import RowMask
from airflow_provider_raybatch.job.parts.part import Part
from airflow_provider_raybatch.job.request import key_array, keys
from airflow_provider_raybatch.job.request.key_array import Keys
from airflow_provider_raybatch.job.reuse.row_keys import RequestKeys
from airflow_provider_raybatch.storage.entry import Entry
from airflow_provider_raybatch.storage.folder import Folder

_NOTE = b"raybatch.search"
_ROWS_AT_ONCE = 2_000_000
Ordinals: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Repeats:
    """Rows that make the same request as an earlier row, by ordinal, ascending.

    :param ordinals: of greedy requests, which share a response.
    :param first: for each of them, the first row with the same request.
    :param keys: for each of them, the key.
    :param sampled: ordinals of sampled requests, which each get a response of their own.
    :param numbers: for each of them, how many earlier rows make the same request.
    """

    ordinals: Ordinals
    first: Ordinals
    keys: Keys
    sampled: Ordinals
    numbers: Ordinals

    def cut(self, rows: int) -> Repeats:
        """Those of the first `rows` rows of the input."""
        near, sampled = self.ordinals < rows, self.sampled < rows
        return Repeats(
            self.ordinals[near],
            self.first[near],
            self.keys[near],
            self.sampled[sampled],
            self.numbers[sampled],
        )

    def numbers_of(self, ordinals: Ordinals) -> Ordinals:
        """For each of these, how many earlier rows make the same sampled request."""
        found: Ordinals = np.zeros(len(ordinals), np.int64)
        there = np.isin(ordinals, self.sampled)
        found[there] = self.numbers[np.searchsorted(self.sampled, ordinals[there])]
        return found


@dataclass(frozen=True)
class Followers:
    """Rows that get the outcome of an equal row of the input.

    :param ordinals: of the rows, ascending.
    :param leaders: for each of them, the row that has or gets the outcome.
    :param keys: for each of them, the key of both.
    """

    ordinals: Ordinals
    leaders: Ordinals
    keys: Keys

    def __len__(self) -> int:
        return len(self.ordinals)

    def where(self, chosen: npt.NDArray[np.bool_]) -> Followers:
        """Some of them, by place."""
        return Followers(self.ordinals[chosen], self.leaders[chosen], self.keys[chosen])

    def and_others(self, others: Followers) -> Followers:
        """These and `others`."""
        ordinals = np.concatenate([self.ordinals, others.ordinals])
        leaders, keys = (
            np.concatenate([self.leaders, others.leaders]),
            np.concatenate([self.keys, others.keys]),
        )
        return Followers(ordinals, leaders, keys).where(np.argsort(ordinals))


def followers_of(repeats: Repeats, wanted: RowMask, may_lead: RowMask) -> Followers:
    """The rows that can share another row's outcome.

    :param wanted: rows that need an outcome.
    :param may_lead: rows that have or get one; the first of equal rows leads the others.
    """
    first, own = repeats.first, repeats.keys
    members, places = np.unique(np.concatenate([repeats.ordinals, first]), return_index=True)
    groups = np.concatenate([first, first])[places]
    members_keys = np.concatenate([own, own])[places]
    leading = may_lead[members]
    led, lowest = np.unique(groups[leading], return_index=True)  # members ascend: the first is the lowest
    leaders = members[leading][lowest]
    place: Ordinals = np.asarray(np.searchsorted(led, groups), np.int64)
    found = np.flatnonzero(wanted[members] & np.isin(groups, led))
    found = found[leaders[place[found]] != members[found]]
    return Followers(members[found], leaders[place[found]], members_keys[found])


def repeats_of(all_rows: RequestKeys, rows_at_once: int = _ROWS_AT_ONCE) -> Repeats:
    """Find them.

    Keys are compared in ranges: to sort all of them at once takes three times the memory that they need.

    :param all_rows: the keys of all rows of the input, not yet numbered.
    :param rows_at_once: about so many are compared at once.
    """
    found = [_repeats_in(all_rows.where(places)) for places in key_array.ranges(all_rows.keys, rows_at_once)]
    ordinals, first, own, sampled, numbers = (
        np.concatenate(arrays)
        for arrays in zip(
            *((one.ordinals, one.first, one.keys, one.sampled, one.numbers) for one in found), strict=True
        )
    )
    order, of_sampled = np.argsort(ordinals), np.argsort(sampled)
    return Repeats(ordinals[order], first[order], own[order], sampled[of_sampled], numbers[of_sampled])


def _repeats_in(some: RequestKeys) -> Repeats:
    """The repeats among some rows, in any order. All rows that ask the same must be there."""
    places = np.flatnonzero(some.greedy)
    high, low = key_array.halves(some.keys[places])
    order = places[np.lexsort((low, high))]  # stable: equal keys stay in input order
    own = some.keys[order]
    is_first = np.r_[np.ones(min(1, len(order)), np.bool_), own[1:] != own[:-1]]
    leader = order[np.flatnonzero(is_first)[np.cumsum(is_first) - 1]]
    followers, leaders = order[~is_first], leader[~is_first]
    numbers = keys.repetitions(some.keys, ~some.greedy)
    sampled = np.flatnonzero(numbers)
    return Repeats(
        some.ordinals[followers],
        some.ordinals[leaders],
        some.keys[followers],
        some.ordinals[sampled],
        numbers[sampled],
    )


@dataclass(frozen=True)
class Search:
    """What is known about duplicates without making the keys of all rows.

    :param rows: of the input when its keys were made; a `limit` may have cut it.
    :param searched: paths of the searched parts of other inputs and configurations.
    """

    repeats: Repeats
    rows: int
    searched: frozenset[str]

    def unsearched(self, parts: Sequence[Part]) -> list[Part]:
        """Those of `parts` that may still hold a response."""
        return [part for part in parts if part.path not in self.searched]

    def after(self, parts: Sequence[Part]) -> Search:
        """What is known once `parts` have been searched, too."""
        return replace(self, searched=self.searched | {part.path for part in parts})

    def write(self, folder: Folder, part_folder: str) -> None:
        """Keep it for later attempts; call it after all cached responses are written.

        :param part_folder: of this driver.
        :raises StorageError: it can't be written.
        """
        found = self.repeats
        table = pa.table({
            "ordinal": np.concatenate([found.ordinals, found.sampled]),
            "first": pa.array(np.concatenate([found.first, found.sampled])),
            "number": np.concatenate([np.zeros(len(found.ordinals), np.int64), found.numbers]),
            "key": key_array.to_arrow(np.concatenate([found.keys, np.zeros(len(found.sampled), "S16")])),
        })
        note = json.dumps({"rows": self.rows, "searched": sorted(self.searched)})
        content = as_parquet(table.replace_schema_metadata({_NOTE: note}), compression="zstd")
        folder.write(f"{part_folder}/{DUPLICATES}", content)


def read_search(folder: Folder, entries: Iterable[Entry], rows: int) -> Search | None:
    """What earlier attempts have kept, ``None`` if that does not cover the input.

    :param entries: the files of one input and one set of requests.
    :param rows: of the input.
    :raises StorageError: it can't be read.
    """
    found: Search | None = None
    for entry in entries:
        if entry.path.endswith(f"/{DUPLICATES}"):
            one = _read(folder, entry)
            if one is not None and one.rows >= rows:
                searched = one.searched | (found.searched if found else frozenset())
                found = Search(one.repeats.cut(rows), rows, searched)
    return found


def _read(folder: Folder, entry: Entry) -> Search | None:
    try:
        with folder.open(entry.path, entry.size) as stream:
            table = pq.read_table(stream)
        note = json.loads((table.schema.metadata or {})[_NOTE])
        ordinals, first, numbers = (table[name].to_numpy() for name in ("ordinal", "first", "number"))
    except (pa.ArrowException, LookupError, ValueError):
        return None  # damaged: all keys are made again
    own = key_array.from_arrow(table["key"].combine_chunks())
    greedy = numbers == 0
    repeats = Repeats(ordinals[greedy], first[greedy], own[greedy], ordinals[~greedy], numbers[~greedy])
    return Search(repeats, note["rows"], frozenset(note["searched"]))
