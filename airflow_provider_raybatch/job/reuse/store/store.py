# SPDX-License-Identifier: Apache-2.0
"""The response cache shared by runs, backfills and DAGs."""

from __future__ import annotations

import datetime
import json
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from airflow_provider_raybatch.contract.events import Notice
from airflow_provider_raybatch.contract.layout import STORE_DATA, STORE_MARK, STORE_WHOLE
from airflow_provider_raybatch.contract.text import count_of
from airflow_provider_raybatch.job.request.key_array import MOST_RANGES, Keys, range_of
from airflow_provider_raybatch.job.reuse.partitions import Partitions
from airflow_provider_raybatch.job.reuse.store import compaction, data, segment
from airflow_provider_raybatch.job.reuse.store.compaction import Compacted
from airflow_provider_raybatch.job.reuse.store.data import StoredFile
from airflow_provider_raybatch.job.reuse.store.files import segment_file
from airflow_provider_raybatch.job.reuse.store.index import StoreHits, look_up, segments, visit
from airflow_provider_raybatch.job.reuse.store.segment import (
    FOREVER,
    Entries,
    Int,
    Segment,
    by_key,
    in_segments,
)
from airflow_provider_raybatch.storage.errors import StorageError, error_prefix
from airflow_provider_raybatch.storage.folder import Folder


@dataclass(frozen=True)
class StoreSize:
    """Figures of a store.

    :param rows: entries of the index; a response that was paid for twice counts twice until compaction.
    :param submissions: number of drivers with responses in the store.
    :param oldest: when the oldest response was stored, in seconds since 1970; ``None`` in an empty store.
    """

    rows: int
    expired: int
    segments: int
    index_bytes: int
    data_files: int
    data_bytes: int
    submissions: int
    oldest: int | None
    newest: int | None
    unusable: int

    def text(self) -> str:
        """As a sentence."""
        return (
            f"{count_of(self.rows, 'response')} ({self.expired:,} expired) of "
            f"{count_of(self.submissions, 'submission')}, stored "
            f"{_day(self.oldest)} to {_day(self.newest)}; {self.data_bytes / 1e6:,.1f} MB in "
            f"{count_of(self.data_files, 'data file')}, {self.index_bytes / 1e6:,.1f} MB in "
            f"{count_of(self.segments, 'segment')} "
            f"of the index ({self.unusable:,} unreadable)"
        )


def size_of_store(folder: Folder, now: float) -> StoreSize:
    """Count what is in the store. Reads only the columns with times of the index."""

    def look(segment: Segment) -> tuple[int, int, int, int]:
        at, until = segment.times()
        return len(at), int((until <= now).sum()), int(at.min(initial=FOREVER)), int(at.max(initial=0))

    unusable: list[str] = []
    found = [one for one in visit(folder, look, unusable) if one[0]]
    index, data = segments(folder), folder.list(STORE_DATA)
    files = [entry for entry in data if entry.path.endswith(".parquet")]
    return StoreSize(
        rows=sum(one[0] for one in found),
        expired=sum(one[1] for one in found),
        segments=len(index),
        index_bytes=sum(entry.size for entry in index),
        data_files=len(files),
        data_bytes=sum(entry.size for entry in data),
        submissions=len({entry.path.split("/")[2] for entry in files}),
        oldest=min((one[2] for one in found), default=None),
        newest=max((one[3] for one in found), default=None),
        unusable=len(unusable),
    )


def _day(at: int | None) -> str:
    if at is None:
        return "never"
    return datetime.datetime.fromtimestamp(at, datetime.timezone.utc).date().isoformat()


Emit = Callable[[Notice], None]


@dataclass(frozen=True)
class _Added:
    """Keys of rows that are stored, with the number of their file and their place in it."""

    KIND: ClassVar[np.dtype[Any]] = np.dtype([("keys", "S16"), ("file", np.int32), ("row", np.int32)])

    keys: Keys
    file: Int
    row: Int


@dataclass(frozen=True)
class ResponseStore:
    """A store in a folder, for any number of concurrent readers and writers.

    Data files hold responses; segments of the index, written after them, hold sorted keys with the location
    of their response. Files never change, so no lock is needed.

    All methods raise :class:`StorageError` if the storage gives no answer: going on would silently pay for
    responses that the user wants to reuse. A missing or damaged file does not come back; it counts as cache
    misses and logs one warning.

    :param max_age: seconds. Older responses are misses, and what this store adds expires after it for all
        readers. ``None`` (default): no limit.
    """

    folder: Folder
    emit: Emit
    max_age: float | None = None
    clock: Callable[[], float] = time.time
    reported: set[str] = field(default_factory=set, compare=False, repr=False)
    """Files with a warning, which is logged once: each range of keys is looked up in the whole index."""

    def prepare(self) -> None:
        """Check, before anything is paid for, that the store can be read and written."""
        content = json.dumps({"store": "responses of airflow-provider-raybatch", "version": 1}).encode()
        with error_prefix("reuse"):
            self.folder.write(STORE_MARK, content)
            self.folder.read(STORE_MARK)

    def lookup(self, keys: Keys) -> StoreHits:
        """Which of `keys` have a response.

        :param keys: sorted, each once: ``np.unique`` makes them so.
        """
        unusable: list[str] = []
        with error_prefix("reuse"):
            hits = look_up(self.folder, keys, self.clock(), self.max_age, unusable)
        self._warn(unusable, "segments of the index can't be used; their responses are paid for again")
        return hits

    def read(self, hits: StoreHits) -> Iterator[pa.Table]:
        """The responses, in the order of `hits`: a table of bounded size for each row group that has some.

        A hit that is in none of the tables counts as a miss: its file is gone or damaged.

        :returns: columns `position` (int64, in the array that was looked up), `key`, `output` (a struct, as
            it was added) and `paid_by` (id of the submission that generated it).
        """
        unusable: list[str] = []
        read, tables = 0, data.read(self.folder, hits, unusable)
        while True:
            with error_prefix("reuse"):
                if (table := next(tables, None)) is None:
                    break
            read += table.num_rows
            yield table
        if read < len(hits):
            example = f" (for example, {unusable[0]})" if unusable else ""
            gone = count_of(len(hits) - read, "stored response")
            text = f"{gone} can't be read; what is asked again is paid for{example}."
            self.emit(Notice(level="warning", message=f"reuse: {text}"))

    def keys(self, most: int) -> Iterator[tuple[StoredFile, Keys]]:
        """The keys that have not expired, by the file with their responses.

        :param most: to read; an index that has many more is read in part.
        """
        unusable: list[str] = []
        now = self.clock()
        since = -np.inf if self.max_age is None else now - self.max_age

        def look(segment: Segment) -> list[Entries]:
            found = [segment.read(group) for group in segment.groups]
            return [one.take((one.until > now) & (one.at >= since)) for one in found]

        with error_prefix("reuse"):
            for entries in (one for found in visit(self.folder, look, unusable) for one in found):
                for number in np.unique(entries.file).tolist():
                    keys = entries.keys[entries.file == number]
                    most -= len(keys)
                    yield StoredFile(entries.files[number]), keys
                if most <= 0:
                    break
        self._warn(unusable, "segments of the index can't be used; their responses are paid for again")

    def holds(self, driver: str) -> bool:
        """Whether :meth:`add` has stored all rows of a driver."""
        with error_prefix("reuse"):
            return self.folder.head(f"{STORE_DATA}/{driver}/{STORE_WHOLE}") is not None

    def add(self, driver: str, tables: Iterable[pa.Table]) -> int:
        """Store what a driver paid for: its good rows, without the reused ones.

        Call it with all rows of the driver. After a complete call, another one does nothing. After an
        interrupted one, it writes all rows again, and compaction drops the duplicates.

        :param tables: columns `key` (``binary(16)``) and `output` (a struct, of one type in all tables); rows
            without output are failures and are skipped. A 256th of the keys is in memory at a time.
        :returns: how many rows were stored.
        """
        if self.holds(driver):
            return 0
        at = int(self.clock())
        with error_prefix("reuse"):
            files: list[str] = []
            added = Partitions(_Added, MOST_RANGES)
            for path, keys in data.write(self.folder, driver, tables, at):
                file: Int = np.full(len(keys), len(files), np.int32)
                added.add(_Added(keys, file, np.arange(len(keys))), range_of(keys, MOST_RANGES))
                files.append(path)
            entries = self._entries(added, files, at)
            for number, some in enumerate(in_segments(entries)):
                segment.write(self.folder, segment_file(driver, at, number), some)
            self.folder.write(
                f"{STORE_DATA}/{driver}/{STORE_WHOLE}", json.dumps({"rows": len(added)}).encode()
            )
        self._compact_if_due()
        return len(added)

    def compact(self) -> Compacted:
        """Merge small segments, drop what expired, delete data that nothing points to."""
        unusable: list[str] = []
        with error_prefix("reuse"):
            done = compaction.compact(self.folder, self.clock(), unusable)
        self._warn(unusable, "segments of the index can't be used, so no data was deleted")
        return done

    def size(self) -> StoreSize:
        """How large the store is."""
        with error_prefix("reuse"):
            return size_of_store(self.folder, self.clock())

    def _entries(self, added: Partitions[_Added], files: Iterable[str], at: int) -> Iterator[Entries]:
        """Sorted by key, a range of keys at a time."""
        until = FOREVER if self.max_age is None else int(min(FOREVER, at + self.max_age))
        names = tuple(files)
        for some in filter(lambda one: len(one.keys), added):
            stored, ends = (np.full(len(some.keys), time) for time in (at, until))
            yield by_key(Entries(some.keys, some.file, some.row, stored, ends, names))

    def _compact_if_due(self) -> None:
        try:
            if compaction.is_due(self.folder):
                self.compact()
        except StorageError as error:
            # The responses are stored; the next run compacts.
            self.emit(Notice(level="warning", message=f"{error} (while compacting the store)"))

    def _warn(self, unusable: list[str], what: str) -> None:
        fresh = [one for one in unusable if what + one not in self.reported]
        self.reported.update(what + one for one in fresh)
        if fresh:
            message = f"reuse: {len(fresh):,} {what} (for example, {fresh[0]})."
            self.emit(Notice(level="warning", message=message))
