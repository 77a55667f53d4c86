# SPDX-License-Identifier: Apache-2.0
"""Which rows need no engine, found in one range of request keys after the other, and kept for later attempts.

Sampled requests that rows repeat are numbered, which takes the keys of all rows. So the first attempt that
makes these keeps the numbers, and which older parts it searched, beside its parts. A resume needs only the
keys of its missing rows, or none.

Equal requests have equal keys, so a range is resolved without the others. Beside a bit or byte a row, the
driver holds one range at a time (`partitions.py`).
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from airflow_provider_raybatch.contract.layout import REPEATS
from airflow_provider_raybatch.job.input.survey import Chunk
from airflow_provider_raybatch.job.input.table import as_parquet
from airflow_provider_raybatch.job.parts.ledger import RowMask
from airflow_provider_raybatch.job.parts.part import Origin, Part
from airflow_provider_raybatch.job.request import key_array, keys
from airflow_provider_raybatch.job.request.key_array import Keys
from airflow_provider_raybatch.job.request.keys import Repetitions
from airflow_provider_raybatch.job.reuse.cached_parts import matched, write_parts
from airflow_provider_raybatch.job.reuse.partitions import Arrays, Partitions
from airflow_provider_raybatch.job.reuse.row_keys import CachedRows, RequestKeys, Responses, ranges_for
from airflow_provider_raybatch.job.work import Job
from airflow_provider_raybatch.storage.file import Entry, checked, with_checksum
from airflow_provider_raybatch.storage.folder import Folder

_NOTE = b"raybatch.search"
Ordinals: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Repeats(Arrays):
    """Rows that make the same sampled request as earlier rows, so that each gets a response of its own.

    :param keys: of the requests, without the numbers.
    :param numbers: how many earlier rows make the same.
    """

    KIND: ClassVar[np.dtype[Any]] = np.dtype([("ordinals", "i8"), ("keys", "S16"), ("numbers", "i4")])

    ordinals: Ordinals
    keys: Keys
    numbers: Ordinals

    def numbers_of(self, ordinals: Ordinals) -> Ordinals:
        """For each of these, how many earlier rows make the same sampled request."""
        found: Ordinals = np.zeros(len(ordinals), np.int64)
        there = np.isin(ordinals, self.ordinals)
        order = np.argsort(self.ordinals)
        found[there] = self.numbers[order][np.searchsorted(self.ordinals[order], ordinals[there])]
        return found


def repeats_of(some: RequestKeys) -> Repeats:
    """Find them.

    :param some: rows that include all equal ones. Ordinals ascend; keys are not yet numbered.
    """
    numbers = keys.repetitions(some.keys, ~some.greedy)
    rows = np.flatnonzero(numbers)
    return Repeats(some.ordinals[rows], some.keys[rows], numbers[rows])


@dataclass(frozen=True)
class Search:
    """What is known without making the keys of all rows.

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
                "number": found.numbers,
                "key": key_array.to_arrow(found.keys),
            })
            is_last = number == files - 1
            searched = sorted(self.searched) if is_last else []
            note = json.dumps({"rows": self.rows, "searched": searched, "files": files})
            content = as_parquet(table.replace_schema_metadata({_NOTE: note}), compression="zstd")
            name = f"{f'{number}-' if files > 1 else ''}{REPEATS}"
            folder.write(f"{part_folder}/{name}", with_checksum(content))


def read_search(folder: Folder, entries: Iterable[Entry], rows: int) -> Search | None:
    """What earlier attempts have kept; ``None`` if that does not cover all `rows` of the input.

    :param entries: the files of one input and one set of requests.
    """
    kept: dict[str, list[Entry]] = {}
    for entry in entries:
        if entry.path.endswith(REPEATS):
            kept.setdefault(entry.path.rpartition("/")[0], []).append(entry)
    found: Search | None = None
    for files in kept.values():
        if (one := _read(folder, files, rows)) is not None:
            found = replace(one, searched=one.searched | (found.searched if found else frozenset()))
    return found


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
            ordinals, numbers = (table[name].to_numpy() for name in ("ordinal", "number"))
            own = key_array.from_arrow(table["key"].combine_chunks())
            near = Repeats(ordinals, own, numbers).where(ordinals < rows)
            found.add(near, key_array.range_of(near.keys, number))
        except (pa.ArrowException, OSError, LookupError, ValueError):
            return None  # damaged: all keys are made again
    return Search(found, rows, frozenset(searched))


@dataclass(frozen=True)
class CachedResponses:
    """Cached responses of one kind, to be written before the engines start.

    :param rows: by ordinal.
    :param responses: where they are read from.
    """

    rows: Partitions[CachedRows]
    responses: Responses
    origin: Origin

    def add(self, cached: CachedRows, rows_in_all: int) -> None:
        """Add rows of an input of so many."""
        self.rows.add(cached, _range_of(cached.ordinals, self.rows, rows_in_all))

    def write(self, job: Job, chunks: Sequence[Chunk]) -> Iterator[list[Part]]:
        """Write them as parts; see :func:`~airflow_provider_raybatch.job.reuse.cached_parts.write_parts`."""
        for cached in self.rows:
            written, _ = write_parts(job, chunks, cached, self.responses, self.origin)
            yield written


class ReuseResolver:
    """Finds the rows that need no engine.

    :ivar rows: those that need none, by ordinal.
    """

    def __init__(self, size: int, resolved: RowMask, found: Sequence[CachedResponses]) -> None:
        self.rows: RowMask = np.zeros(size, np.bool_)
        number = ranges_for(size)
        self._resolved, self._found = resolved, found
        self._numbered = Partitions(RequestKeys, number)
        self._repeated = Partitions(Repetitions, number)

    def resolve(self, repeats: Partitions[Repeats], own: Partitions[RequestKeys] | None) -> None:
        """Resolve one range of keys after the other.

        :param repeats: of all rows.
        :param own: keys of the rows, if they are to be looked up.
        """
        for place, some in enumerate(repeats):
            self._resolve(some, None if own is None else own[place])
        for numbered in self._numbered:  # each has a key of its own, in a range of its own
            if len(numbered):
                self._look_up(numbered)

    def _resolve(self, repeats: Repeats, own: RequestKeys | None) -> None:
        if own is not None:
            remaining = own.where(self._is_open(own.ordinals))
            numbers = repeats.numbers_of(remaining.ordinals)
            later = (numbers > 0) & (self._numbered.number > 1)  # their numbered keys are in any range
            numbered = remaining.where(later).numbered(numbers[later])
            self._numbered.add(numbered, key_array.range_of(numbered.keys, self._numbered.number))
            self._look_up(remaining.where(~later).numbered(numbers[~later]))
        sampled = repeats.where(~self._resolved[repeats.ordinals])
        repeated = Repetitions(sampled.ordinals, sampled.numbers)
        self._repeated.add(repeated, _range_of(sampled.ordinals, self._repeated, len(self.rows)))

    @property
    def repetitions(self) -> Repetitions:
        """Of all rows that are not resolved, those that repeat a sampled request."""
        # Filled in place: a second copy would need the most memory.
        found = Repetitions(np.empty(len(self._repeated), np.int64), np.empty(len(self._repeated), np.int32))
        stop = 0
        for some in self._repeated:
            start, stop = stop, stop + len(some)
            order = np.argsort(some.rows)
            found.rows[start:stop], found.numbers[start:stop] = some.rows[order], some.numbers[order]
        return found

    def _is_open(self, ordinals: Ordinals) -> RowMask:
        return ~(self._resolved[ordinals] | self.rows[ordinals])

    def _look_up(self, remaining: RequestKeys) -> None:
        for one in self._found:
            cached = matched(remaining.ordinals, remaining.keys, one.responses)
            one.add(cached, len(self.rows))
            self.rows[cached.ordinals] = True
            remaining = remaining.where(~np.isin(remaining.ordinals, cached.ordinals))


def _range_of(ordinals: Ordinals, ranges: Partitions[Any], rows: int) -> Ordinals:
    return ordinals * ranges.number // rows
