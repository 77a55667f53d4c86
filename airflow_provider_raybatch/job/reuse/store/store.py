# SPDX-License-Identifier: Apache-2.0
"""The responses of earlier nights, shared by runs, backfills and DAGs."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from airflow_provider_raybatch.contract.events import Notice
from airflow_provider_raybatch.contract.layout import STORE_DATA, STORE_MARK, STORE_WHOLE
from airflow_provider_raybatch.job.request.key_array import Keys
from airflow_provider_raybatch.job.reuse.store import compaction, data, segment
from airflow_provider_raybatch.job.reuse.store.compaction import Compacted
from airflow_provider_raybatch.job.reuse.store.files import segment_file
from airflow_provider_raybatch.job.reuse.store.index import Hits, look_up
from airflow_provider_raybatch.job.reuse.store.segment import FOREVER, ROWS_PER_SEGMENT, Entries, by_key
from airflow_provider_raybatch.job.reuse.store.size import StoreReport, report
from airflow_provider_raybatch.storage.errors import StorageError, laid_to
from airflow_provider_raybatch.storage.folder import Folder

Say = Callable[[Notice], None]


@dataclass(frozen=True)
class ResponseStore:
    """A store in a folder, for any number of readers and writers at a time.

    ``v1/data/<submission>/<number>.parquet`` has the responses, ``v1/index/<name>.parquet`` sorted keys with
    the place of their response, written after it. Nothing is changed once it is written, so nobody waits.

    Where the store does not answer (after the client's own retries), all methods raise
    :class:`StorageError`, which a retry of the task may heal: to go on would be to pay silently for what the
    user asked not to pay for again. A file that is gone or damaged can't be healed by waiting; it makes
    misses, and a notice.

    :param say: gets notices.
    :param max_age: in seconds. Older responses are no hits; and what is stored expires after it, for all
        readers. ``None``: everything is a hit, and stays.
    """

    folder: Folder
    say: Say
    max_age: float | None = None
    clock: Callable[[], float] = time.time

    def prepare(self) -> None:
        """Make sure, before anything is paid for, that the store can be read and written.

        :raises StorageError: it can't; the sentence names `reuse`.
        """
        content = json.dumps({"store": "responses of airflow-provider-raybatch", "version": 1}).encode()
        with laid_to("reuse"):
            self.folder.write(STORE_MARK, content)
            self.folder.read(STORE_MARK)

    def lookup(self, keys: Keys) -> Hits:
        """Which of `keys` have a response.

        :param keys: ``S16`` (:func:`key_array.from_arrow`), sorted, each once: ``np.unique`` makes them so.
        :raises StorageError: the store doesn't answer.
        """
        unusable: list[str] = []
        with laid_to("reuse"):
            hits = look_up(self.folder, keys, self.clock(), self.max_age, unusable)
        self._tell(unusable, "segments of the index can't be used; their responses are paid for again")
        return hits

    def read(self, hits: Hits) -> Iterator[pa.Table]:
        """The responses, in the order of `hits`: a table of bounded size for each row group that has some.

        A hit that is in none of the tables is a miss after all: its file is gone or damaged.

        :returns: columns `position` (int64, in the array that was looked up), `key`, `output` (a struct, as
            it was added) and `paid_by` (the submission that generated it).
        :raises StorageError: the store doesn't answer.
        """
        unusable: list[str] = []
        read, tables = 0, data.read(self.folder, hits, unusable)
        while True:
            with laid_to("reuse"):
                table = next(tables, None)
            if table is None:
                break
            read += table.num_rows
            yield table
        if read < len(hits):
            example = f" (for example, {unusable[0]})" if unusable else ""
            text = f"{len(hits) - read:,} stored responses can't be read and are paid for again{example}."
            self.say(Notice(level="warning", message=f"reuse: {text}"))

    def holds(self, submission: str) -> bool:
        """Whether :meth:`add` has stored all rows of `submission`.

        :raises StorageError: the store doesn't answer.
        """
        with laid_to("reuse"):
            return self.folder.head(f"{STORE_DATA}/{submission}/{STORE_WHOLE}") is not None

    def add(self, submission: str, tables: Iterable[pa.Table]) -> int:
        """Store what a submission paid for: its good rows, without those that were reused themselves.

        Call it once a submission, with all of its rows. If that was done before, nothing happens; if it was
        begun before, all is written again, and compaction drops what is there twice.

        :param tables: columns `key` (``binary(16)``) and `output` (a struct, of one type in all tables); rows
            whose output is null are failures and left out. Consumed one by one; of all rows of the
            submission, only the keys are held.
        :returns: how many rows were stored.
        :raises StorageError: the store doesn't answer.
        """
        if self.holds(submission):
            return 0
        at = int(self.clock())
        with laid_to("reuse"):
            written = data.write(self.folder, submission, tables, at)
            entries = by_key(self._entries(written, at))
            for number, start in enumerate(range(0, len(entries), ROWS_PER_SEGMENT)):
                path = segment_file(submission, at, number)
                segment.write(self.folder, path, entries.take(slice(start, start + ROWS_PER_SEGMENT)))
            self.folder.write(
                f"{STORE_DATA}/{submission}/{STORE_WHOLE}", json.dumps({"rows": len(entries)}).encode()
            )
        self._compact_if_due()
        return len(entries)

    def compact(self) -> Compacted:
        """Merge small segments, drop what expired, delete data that nothing points to.

        :raises StorageError: the store doesn't answer; nothing is lost.
        """
        unusable: list[str] = []
        with laid_to("reuse"):
            done = compaction.compact(self.folder, self.clock(), unusable)
        self._tell(unusable, "segments of the index can't be used, so no data was deleted")
        return done

    def report(self) -> StoreReport:
        """How large the store is.

        :raises StorageError: the store doesn't answer.
        """
        with laid_to("reuse"):
            return report(self.folder, self.clock())

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
            # The responses are stored; the next run tidies up.
            self.say(Notice(level="warning", message=f"{error} (while compacting the store)"))

    def _tell(self, unusable: list[str], what: str) -> None:
        if unusable:
            message = f"reuse: {len(unusable):,} {what} (for example, {unusable[0]})."
            self.say(Notice(level="warning", message=message))
