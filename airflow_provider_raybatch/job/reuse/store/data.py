# SPDX-License-Identifier: Apache-2.0
"""Data files of the store: responses in the order in which one driver generated them.

The next run looks them up in about the same order, so its hits are in few row groups. Each row holds its key,
and is returned only for that key. So neither a replaced file, nor a wrong index, nor a foreign file can give
a request the wrong response.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, pairwise
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from airflow_provider_raybatch.job.input.table import as_parquet
from airflow_provider_raybatch.job.request import key_array
from airflow_provider_raybatch.job.request.key_array import KEY, Keys
from airflow_provider_raybatch.job.reuse.store.files import (
    FileChangedError,
    data_file,
    paid_by,
    parquet_file,
    reading,
    usable,
)
from airflow_provider_raybatch.job.reuse.store.index import StoreHits
from airflow_provider_raybatch.job.reuse.store.segment import Int
from airflow_provider_raybatch.storage.file import Entry, RangedFile
from airflow_provider_raybatch.storage.folder import Folder

ROWS_PER_FILE = 65_536
ROWS_PER_GROUP = 4_096
_BYTES_PER_FILE = 64 * 1024 * 1024
_BYTES_PER_GROUP = 4 * 1024 * 1024
"""Before compression. Smaller groups mean fewer unwanted bytes per read, and worse compression."""


@dataclass(frozen=True)
class StoredFile:
    """A data file, by its path in the store."""

    path: str

    def read(self, folder: Folder) -> pa.Table:
        """All of it: columns `key` and `output`.

        :raises UnusableError: it is gone, or can't be read.
        """
        entry = folder.head(self.path)
        if entry is None:
            raise FileChangedError(f"{self.path} is gone")
        return reading(folder, entry, lambda: parquet_file(RangedFile(folder, entry)).read(["key", "output"]))

    @property
    def paid_by(self) -> str:
        """Submission that has paid for its answers."""
        return paid_by(self.path)


def write(folder: Folder, submission: str, tables: Iterable[pa.Table], at: int) -> Iterator[tuple[str, Keys]]:
    """Write rows as data files, one when it is asked for.

    :param tables: see :meth:`ResponseStore.add`.
    :param at: see :func:`files.data_file`.
    :returns: name and keys of each file.
    """
    for number, table in enumerate(_cut(_checked(table) for table in tables)):
        path = data_file(submission, at, number)
        content = as_parquet(
            table,
            row_group_size=_fitting(table, ROWS_PER_GROUP, _BYTES_PER_GROUP),
            compression="zstd",
            write_statistics=False,
        )
        folder.write(path, content)
        yield path, key_array.from_arrow(table["key"])


def read(folder: Folder, hits: StoreHits, unusable: list[str]) -> Iterator[pa.Table]:
    """See :meth:`ResponseStore.read`.

    :param unusable: gets a clause for each file or row group that is gone or can't be read; its rows are
        skipped, as are rows with another key than expected.
    """
    groups = _groups(folder, hits, unusable)
    for found in usable(partial(_read_group, folder, hits), groups, unusable):
        if found.num_rows:
            yield found


_Group: TypeAlias = tuple[Entry, pq.FileMetaData, int, int, Int]
"""A row group with hits: file and footer, number, first row, and which hits are in it."""


def _groups(folder: Folder, hits: StoreHits, unusable: list[str]) -> Iterator[_Group]:
    # A separate pool fetches footers ahead: one request after another would take seconds.
    entries = hits.entries
    limits: Int = np.searchsorted(entries.file, np.arange(len(entries.files) + 1))
    files = (
        (path, first, stop)
        for path, (first, stop) in zip(entries.files, pairwise(limits.tolist()), strict=True)
        if first < stop
    )
    for entry, metadata, begin, end in usable(partial(_opened, folder), files, unusable):
        rows = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
        offsets = list(accumulate(rows, initial=0))
        borders: Int = begin + np.searchsorted(entries.row[begin:end], offsets)
        for group, (first, stop) in enumerate(pairwise(borders.tolist())):
            if first < stop:
                yield entry, metadata, group, offsets[group], np.arange(first, stop)


def _opened(folder: Folder, hit: tuple[str, int, int]) -> tuple[Entry, pq.FileMetaData, int, int]:
    """A data file with its footer, and the hits in it: the first, and one past the last."""
    path, first, stop = hit
    entry = folder.head(path)
    if entry is None:
        raise FileChangedError(f"{path} is gone")
    metadata = reading(folder, entry, lambda: parquet_file(RangedFile(folder, entry)).metadata)
    return entry, metadata, first, stop


def _read_group(folder: Folder, hits: StoreHits, group: _Group) -> pa.Table:
    entry, metadata, number, offset, which = group

    def rows() -> pa.Table:
        opened = parquet_file(RangedFile(folder, entry), metadata)
        table = opened.read_row_group(number, ["key", "output"], use_threads=False)
        table = table.take(pa.array(hits.entries.row[which] - offset))
        keys = key_array.from_arrow(table["key"])
        right = keys == hits.entries.keys[which]
        columns = {
            "position": pa.array(hits.position[which]),
            "key": table["key"],
            "output": table["output"],
            "paid_by": pa.repeat(paid_by(entry.path), table.num_rows),
        }
        return pa.table(columns).filter(pa.array(right))

    return reading(folder, entry, rows)


def _checked(table: pa.Table) -> pa.Table:
    found = {name: table.schema.field(name).type for name in table.schema.names}
    if found.get("key") != KEY or not pa.types.is_struct(found.get("output", pa.null())):
        raise ValueError(f"add: columns 'key' ({KEY}) and 'output' (a struct) are needed, not {found}")
    good = table.select(["key", "output"]).filter(table["output"].is_valid())
    return good.cast(pa.schema([pa.field("key", KEY, nullable=False), pa.field("output", found["output"])]))


def _fitting(table: pa.Table, rows: int, size: int) -> int:
    """How many rows of `table`, on average, are neither more than `rows` nor `size` bytes."""
    return max(1, min(rows, int(size / max(1.0, table.nbytes / max(1, table.num_rows)))))


def _cut(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """The same rows, a table for each file."""
    waiting, rows, size = list[pa.Table](), 0, 0
    for table in tables:
        step = _fitting(table, ROWS_PER_FILE, _BYTES_PER_FILE)
        for start in range(0, table.num_rows, step):
            piece = table.slice(start, step)
            if waiting and (rows + piece.num_rows > ROWS_PER_FILE or size + piece.nbytes > _BYTES_PER_FILE):
                yield pa.concat_tables(waiting)
                waiting, rows, size = [], 0, 0
            waiting.append(piece)
            rows, size = rows + piece.num_rows, size + piece.nbytes
    if waiting:
        yield pa.concat_tables(waiting)
