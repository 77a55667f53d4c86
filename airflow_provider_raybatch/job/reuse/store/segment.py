# SPDX-License-Identifier: Apache-2.0
"""One segment of the index: sorted keys, and for each the file and row of its response.

A segment is written once and never changes. Its entries are hints: the row that one points to holds its own
key, which decides (:mod:`airflow_provider_raybatch.job.reuse.store.data`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from airflow_provider_raybatch.job.input.table import as_parquet
from airflow_provider_raybatch.job.request import key_array
from airflow_provider_raybatch.job.request.key_array import KEY, Keys
from airflow_provider_raybatch.job.reuse.store.files import paid_by, parquet_file
from airflow_provider_raybatch.storage.file import Entry, RangedFile
from airflow_provider_raybatch.storage.folder import Folder

ROWS_PER_GROUP = 65_536
ROWS_PER_SEGMENT = 8 * ROWS_PER_GROUP
"""So that one segment, about 10 MB, can be made in memory, whatever the size of the store."""
_LARGEST_LOADED = 16 * 1024 * 1024
FOREVER = 2**63 - 1
"""`until` of what never expires."""

_FILES = b"raybatch.files"
_SCHEMA = pa.schema([
    pa.field("key", KEY, nullable=False),
    pa.field("file", pa.int32(), nullable=False),
    pa.field("row", pa.int32(), nullable=False),
    pa.field("at", pa.int64(), nullable=False),
    pa.field("until", pa.int64(), nullable=False),
])

Int: TypeAlias = npt.NDArray[np.signedinteger[Any]]


@dataclass(frozen=True)
class Entries:
    """Entries of the index, as arrays of equal length.

    :param file: number of the data file in `files`.
    :param row: position in it.
    :param at: when it was paid for, seconds since 1970.
    :param until: when it expires, :data:`FOREVER` for never.
    """

    keys: Keys
    file: Int
    row: Int
    at: Int
    until: Int
    files: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.keys)

    def take(self, which: Any) -> Entries:
        """Those at positions `which`, or where `which` is true."""
        return Entries(
            self.keys[which], self.file[which], self.row[which], self.at[which], self.until[which], self.files
        )


def concat(several: Sequence[Entries]) -> Entries:
    """All of them, with one list of files."""
    numbers: dict[str, int] = {}
    renumbered = []
    for one in several:
        new = np.array([numbers.setdefault(name, len(numbers)) for name in one.files], dtype=np.int64)
        renumbered.append(new[one.file] if len(one) else np.empty(0, dtype=np.int64))
    return Entries(
        keys=np.concatenate([np.empty(0, dtype="S16"), *(one.keys for one in several)]),
        file=_joined(renumbered),
        row=_joined([one.row for one in several]),
        at=_joined([one.at for one in several]),
        until=_joined([one.until for one in several]),
        files=tuple(numbers),
    )


def _joined(columns: Sequence[Int]) -> Int:
    return np.concatenate([np.empty(0, dtype=np.int64), *columns])


def by_key(entries: Entries) -> Entries:
    """Sorted: by key, then the newest first, then entries of one response next to each other."""
    high, low = key_array.halves(entries.keys)
    order = (-entries.until, entries.row, entries.file, -entries.at, low, high)  # the last counts most
    return entries.take(np.lexsort(order))


def write(folder: Folder, path: str, entries: Entries) -> None:
    """Write sorted entries as one segment that names the files they point to and no others."""
    used, file = np.unique(entries.file, return_inverse=True)
    names = json.dumps([entries.files[number] for number in used])
    table = pa.table(
        [
            key_array.to_arrow(entries.keys),
            file.astype(np.int32),
            entries.row.astype(np.int32),
            entries.at,
            entries.until,
        ],
        schema=_SCHEMA.with_metadata({_FILES: names}),
    )
    # Keys and rows are random numbers: only the other columns shrink, and a dictionary does that.
    content = as_parquet(
        table,
        row_group_size=ROWS_PER_GROUP,
        compression="none",
        use_dictionary=["file", "at", "until"],
        write_statistics=["key", "at", "until"],
    )
    folder.write(path, content)


def in_segments(several: Iterable[Entries]) -> Iterator[Entries]:
    """The same entries, each time as many as a segment has."""
    waiting: list[Entries] = []
    for some in several:
        waiting.append(some)
        if sum(map(len, waiting)) < ROWS_PER_SEGMENT:
            continue
        found, start = concat(waiting), 0
        while len(found) - start >= ROWS_PER_SEGMENT:
            yield found.take(slice(start, start := start + ROWS_PER_SEGMENT))
        waiting = [found.take(slice(start, None))]
    if rest := concat(waiting):
        yield rest


class Segment:
    """An open segment. :raises ValueError: the file is not one."""

    def __init__(self, folder: Folder, entry: Entry) -> None:
        self._stream, self._size = RangedFile(folder, entry), entry.size
        self._file = parquet_file(self._stream)
        self._metadata = self._file.metadata
        if not self._file.schema_arrow.equals(_SCHEMA):
            raise ValueError("it is not a segment of this version")
        self.files: tuple[str, ...] = tuple(json.loads((self._metadata.metadata or {})[_FILES]))
        for name in self.files:
            paid_by(name)

    @property
    def rows(self) -> int:
        """How many entries it has."""
        return int(self._metadata.num_rows)

    @property
    def groups(self) -> range:
        """Its row groups."""
        return range(self._metadata.num_row_groups)

    @cached_property
    def first_expiry(self) -> int:
        """The smallest `until`."""
        found = [self._statistics(group, "until") for group in self.groups]
        return min((limits[0] for limits in found if limits is not None), default=FOREVER)

    def bounds(self, group: int) -> tuple[np.uint64, np.uint64]:
        """First halves of the smallest and the largest key of a row group."""
        smallest, largest = self._statistics(group, "key") or (bytes(16), b"\xff" * 16)
        return np.uint64(int.from_bytes(smallest[:8], "big")), np.uint64(int.from_bytes(largest[:8], "big"))

    def load_for(self, groups: int) -> None:
        """Fetch all row groups at once if most of them will be read and the file has a normal size.

        Bytes cost an object store less time than requests.
        """
        if 2 * groups > len(self.groups) and self._size <= _LARGEST_LOADED:
            self._stream.load()

    def read(self, group: int) -> Entries:
        """The entries of one row group."""
        # Its callers have threads of their own; Arrow's would only hand work to and fro.
        table = self._file.read_row_group(group, use_threads=False)
        keys = key_array.from_arrow(table["key"])
        file, row, at, until = (table[name].to_numpy() for name in _SCHEMA.names[1:])
        if len(file) and not 0 <= file.min() <= file.max() < len(self.files):
            raise ValueError("it points to files that it does not name")
        return Entries(keys, file, row, at, until, self.files)

    def times(self) -> tuple[Int, Int]:
        """`at` and `until` of all entries."""
        table = self._file.read(["at", "until"])
        return table["at"].to_numpy(), table["until"].to_numpy()

    def between(self, first: int, last: int) -> Entries:
        """The entries whose key's first half is from `first` to `last`."""
        found = []
        for group in self.groups:
            smallest, largest = self.bounds(group)
            if smallest <= last and largest >= first:
                entries = self.read(group)
                high, _ = key_array.halves(entries.keys)
                found.append(entries.take((high >= first) & (high <= last)))
        return concat(found)

    def _statistics(self, group: int, column: str) -> tuple[Any, Any] | None:
        found = self._metadata.row_group(group).column(_SCHEMA.names.index(column)).statistics
        return (found.min, found.max) if found is not None and found.has_min_max else None
