# SPDX-License-Identifier: Apache-2.0
"""The response cache shared by runs, backfills and DAGs."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from airflow_provider_raybatch.contract.events import Notice
from airflow_provider_raybatch.contract.layout import STORE_DATA, STORE_MARK, STORE_WHOLE
from airflow_provider_raybatch.contract.text import count_of
from airflow_provider_raybatch.job.request.key_array import Keys
from airflow_provider_raybatch.job.reuse.store import compaction, data, segment
from airflow_provider_raybatch.job.reuse.store.compaction import Compacted
from airflow_provider_raybatch.job.reuse.store.files import segment_file
from airflow_provider_raybatch.job.reuse.store.index import StoreHits, look_up
from airflow_provider_raybatch.job.reuse.store.segment import FOREVER, ROWS_PER_SEGMENT, Entries, by_key
from airflow_provider_raybatch.job.reuse.store.size import StoreReport, size_of_store
from airflow_provider_raybatch.storage.errors import StorageError, error_prefix
from airflow_provider_raybatch.storage.folder import Folder

Emit = Callable[[Notice], None]


@dataclass(frozen=True)
class ResponseStore:
    """A store in a folder, for any number of concurrent readers and writers.

    ``v1/data/<driver>/<number>.parquet`` holds responses. ``v1/index/<name>.parquet`` holds sorted keys with
    the location of their response, and is written after it. Files never change, so no lock is needed.

    If the storage gives no answer after the client's retries, all methods raise :class:`StorageError`, and a
    retry of the task may succeed. Going on would silently pay for responses that the user wants to reuse. A
    missing or damaged file does not come back; it counts as cache misses and logs one warning.

    :param emit: called with notices.
    :param max_age: seconds. Older responses are misses, and what this store adds expires after it for all
        readers. ``None`` (default): no limit.
    """

    folder: Folder
    emit: Emit
    max_age: float | None = None
    clock: Callable[[], float] = time.time
    told: set[str] = field(default_factory=set, compare=False, repr=False)
    """What could not be used, and was told: keys are looked up in ranges, each in the whole index."""

    def prepare(self) -> None:
        """Check, before anything is paid for, that the store can be read and written.

        :raises StorageError: it can't; the message names `reuse`.
        """
        content = json.dumps({"store": "responses of airflow-provider-raybatch", "version": 1}).encode()
        with error_prefix("reuse"):
            self.folder.write(STORE_MARK, content)
            self.folder.read(STORE_MARK)

    def lookup(self, keys: Keys) -> StoreHits:
        """Which of `keys` have a response.

        :param keys: ``S16`` (:func:`key_array.from_arrow`), sorted, each once: ``np.unique`` makes them so.
        :raises StorageError: the storage gives no answer.
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
        :raises StorageError: the storage gives no answer.
        """
        unusable: list[str] = []
        read, tables = 0, data.read(self.folder, hits, unusable)
        while True:
            with error_prefix("reuse"):
                table = next(tables, None)
            if table is None:
                break
            read += table.num_rows
            yield table
        if read < len(hits):
            example = f" (for example, {unusable[0]})" if unusable else ""
            gone = count_of(len(hits) - read, "stored response")
            text = f"{gone} can't be read; what is asked again is paid for{example}."
            self.emit(Notice(level="warning", message=f"reuse: {text}"))

    def holds(self, driver: str) -> bool:
        """Whether :meth:`add` has stored all rows of a driver.

        :raises StorageError: the storage gives no answer.
        """
        with error_prefix("reuse"):
            return self.folder.head(f"{STORE_DATA}/{driver}/{STORE_WHOLE}") is not None

    def add(self, driver: str, tables: Iterable[pa.Table]) -> int:
        """Store what a driver paid for: its good rows, without the reused ones.

        Call it once per driver, with all of its rows. After a complete call, another one does nothing.
        After an interrupted one, it writes all rows again, and compaction drops the duplicates.

        :param tables: columns `key` (``binary(16)``) and `output` (a struct, of one type in all tables); rows
            without output are failures and are skipped. Tables are consumed one by one; of all rows, only
            the keys are held in memory.
        :returns: how many rows were stored.
        :raises StorageError: the storage gives no answer.
        """
        if self.holds(driver):
            return 0
        at = int(self.clock())
        with error_prefix("reuse"):
            written = data.write(self.folder, driver, tables, at)
            entries = by_key(self._entries(written, at))
            for number, start in enumerate(range(0, len(entries), ROWS_PER_SEGMENT)):
                path = segment_file(driver, at, number)
                segment.write(self.folder, path, entries.take(slice(start, start + ROWS_PER_SEGMENT)))
            self.folder.write(
                f"{STORE_DATA}/{driver}/{STORE_WHOLE}", json.dumps({"rows": len(entries)}).encode()
            )
        self._compact_if_due()
        return len(entries)

    def compact(self) -> Compacted:
        """Merge small segments, drop what expired, delete data that nothing points to.

        :raises StorageError: the storage gives no answer; nothing is lost.
        """
        unusable: list[str] = []
        with error_prefix("reuse"):
            done = compaction.compact(self.folder, self.clock(), unusable)
        self._warn(unusable, "segments of the index can't be used, so no data was deleted")
        return done

    def report(self) -> StoreReport:
        """How large the store is.

        :raises StorageError: the storage gives no answer.
        """
        with error_prefix("reuse"):
            return size_of_store(self.folder, self.clock())

    def _entries(self, written: list[tuple[str, Keys]], at: int) -> Entries:
        counts = [len(keys) for _, keys in written]
        until = FOREVER if self.max_age is None else int(min(FOREVER, at + self.max_age))
        return Entries(
            keys=np.concatenate([np.empty(0, dtype="S16"), *(keys for _, keys in written)]),
            file=np.repeat(np.arange(len(written)), counts),
            row=np.concatenate([np.empty(0, dtype=np.int64), *(np.arange(count) for count in counts)]),
            at=np.full(sum(counts), at),
            until=np.full(sum(counts), until),
            files=tuple(path for path, _ in written),
        )

    def _compact_if_due(self) -> None:
        try:
            if compaction.is_due(self.folder):
                self.compact()
        except StorageError as error:
            # The responses are stored; the next run compacts.
            self.emit(Notice(level="warning", message=f"{error} (while compacting the store)"))

    def _warn(self, unusable: list[str], what: str) -> None:
        fresh = [one for one in unusable if what + one not in self.told]
        self.told.update(what + one for one in fresh)
        if fresh:
            message = f"reuse: {len(fresh):,} {what} (for example, {fresh[0]})."
            self.emit(Notice(level="warning", message=message))
