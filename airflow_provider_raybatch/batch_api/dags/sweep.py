# SPDX-License-Identifier: Apache-2.0
"""What has expired is deleted: files with what came of them, and later the documents of batches.

A sweep may be killed anywhere, and several may run at once: what the next one finds the rest by is deleted
last. Nothing of a batch that has not ended is touched, and nothing that this Airflow has not signed. A batch
that its task has not ended a day after its window ends here, so that its input does not stay for ever.
"""

from __future__ import annotations

import logging
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from airflow_provider_raybatch.batch_api.store.ending import dataset_of, end_from_manifest, end_without_job
from airflow_provider_raybatch.batch_api.store.ids import (
    is_file_id,
    listed_batch,
    listed_file,
    output_file_id,
)
from airflow_provider_raybatch.batch_api.store.records import BatchEnd, BatchRecord, FileRecord
from airflow_provider_raybatch.batch_api.store.store import BatchStore
from airflow_provider_raybatch.contract import layout
from airflow_provider_raybatch.contract.failures import FailureClass, RaybatchError
from airflow_provider_raybatch.storage.file import Entry, in_order
from airflow_provider_raybatch.storage.folder import folder
from airflow_provider_raybatch.storage.operations import check_no_links

DAY = 86400.0
CREATES_KEPT = 30 * DAY
"""For how long an idempotency key finds its batch, from the last create with it."""
BATCHES_KEPT = 365 * DAY
"""How long the documents of a batch are kept after its end."""
ABANDONED = DAY
"""After its window, and after the last sign of its job, a batch has so long for its task to end it."""
STRAYS_KEPT = DAY
"""How long content may lie without a record; or half-written, without a write."""
SLACK = 600.0
"""A file is deleted so much later than it expires: a batch may just have been created of it."""

_KINDS = ("output", "error")
_log = logging.getLogger(__name__)

Item = TypeVar("Item")


def sweep(store: BatchStore, now: float | None = None) -> dict[str, int]:
    """Delete what has expired, and end batches that nothing else will end.

    :param now: epoch seconds; by default the time of the call.
    :return: how many `files`, `datasets`, `batches`, `creates` and `strays` (keys and content without a
        record) were deleted, and how many documents were `unreadable` and left as they are.
    :raises StorageError: the storage does not answer; the next call goes on.
    """
    run = _Sweep(store, time.time() if now is None else now)
    files, batches = run.keys()  # before the records, which are written before their keys
    run.each(run.batch, batches.items())
    uploads = run.folders(layout.FILES)
    run.each(run.file, run.expired(files, uploads))
    run.strays(files, uploads)
    run.unnamed(uploads)
    run.old_creates()
    run.deleted["datasets"] = len(run.datasets)
    kinds = ("files", "datasets", "batches", "creates", "strays", "unreadable")
    return {kind: run.deleted[kind] for kind in kinds}


class _Key(NamedTuple):
    """The key of a file in its user's index."""

    path: str
    expires_at: float


@dataclass
class _Sweep:
    """One call.

    :param in_use: input files of batches that have not ended.
    :param datasets: batches whose datasets were deleted.
    """

    store: BatchStore
    now: float
    deleted: Counter[str] = field(default_factory=Counter)
    in_use: set[str] = field(default_factory=set)
    datasets: set[str] = field(default_factory=set)

    def keys(self) -> tuple[dict[str, _Key], dict[str, str]]:
        """Keys of all users, by the files and the batches that they name."""
        files, batches = {}, {}
        for entry in self.store.root.list(layout.USERS):
            place, _, name = entry.path.rpartition("/")
            if place.endswith(f"/{layout.FILES}") and (file := listed_file(name)) is not None:
                files[file.id] = _Key(entry.path, file.expires_at)
            elif place.endswith(f"/{layout.BATCHES}") and (batch := listed_batch(name)) is not None:
                batches[batch.id] = entry.path
        return files, batches

    def expired(self, keys: Mapping[str, _Key], folders: Mapping[str, list[Entry]]) -> list[str]:
        """Files that may have expired; also those whose key is lost."""
        return [
            file_id
            for file_id, entries in folders.items()
            if _has_record(entries) and (file_id not in keys or self._is_over(keys[file_id].expires_at))
        ]

    def each(self, look: Callable[[Item], None], items: Iterable[Item]) -> None:
        """Look at files or batches side by side; a document that can't be trusted is left alone."""

        def guarded(item: Item) -> None:
            try:
                look(item)
            except RaybatchError as error:
                if error.failure_class is not FailureClass.USER_ERROR:
                    raise
                _log.warning("Not deleted: %s", error)
                self.deleted["unreadable"] += 1

        for _ in in_order(guarded, items):
            pass

    def batch(self, item: tuple[str, str]) -> None:
        """Delete a batch that ended long ago, or the dataset of one that has no files."""
        batch_id, key = item
        ended = self.store.ended(batch_id)
        if ended is None:
            record = self.store.record(batch_id)
            if record is not None:
                self._unfinished(record)
            elif self.store.ended(batch_id) is None:
                self._delete([key], "strays")
        elif ended.at + BATCHES_KEPT <= self.now:
            if self._files_of(batch_id):
                return
            # The end goes last but for the key: without it, the batch would seem to run.
            place = layout.batch_folder(batch_id)
            end = f"{place}/{layout.ENDED}"
            paths = self._paths(place)
            self.store.root.delete([path for path in paths if path != end])
            self._delete([end], "batches")
            self.store.root.delete([place])
            self.store.root.delete([key])
        elif ended.output_file_id is None and ended.error_file_id is None:
            self._without_files(batch_id, ended)

    def _unfinished(self, record: BatchRecord) -> None:
        """Keep the input of a batch that has not ended, unless its window is long over: then it ends.

        Its DAG run was deleted or marked, or no attempt could end it, and its owner has not looked since.
        """
        state = self.store.state(record.id) if record.expires_at + ABANDONED <= self.now else None
        if state is None or (state.progress is not None and state.progress.at + ABANDONED > self.now):
            self.in_use.add(record.input_file_id)
        elif end_from_manifest(self.store, state) is None:
            end_without_job(self.store, state, "expired")

    def _without_files(self, batch_id: str, ended: BatchEnd) -> None:
        record = self.store.record(batch_id)
        if record is not None and ended.at + record.outputs_expire_after + SLACK <= self.now:
            self._delete_dataset(batch_id)

    def file(self, file_id: str) -> None:
        """Delete a file that has expired; with the last one of a batch, its dataset."""
        record = self.store.file(file_id)
        if record is None or file_id in self.in_use or not self._is_over(record.expires_at):
            return
        if record.batch_id is not None:
            if self.store.ended(record.batch_id) is None:
                return
            others = [one for one in self._files_of(record.batch_id) if one.id != file_id]
            if all(self._is_over(one.expires_at) for one in others):
                self._delete_dataset(record.batch_id)
        self.store.delete_file(record)
        self.deleted["files"] += 1

    def strays(self, keys: Mapping[str, _Key], folders: Mapping[str, list[Entry]]) -> None:
        """Delete keys without a record, and what uploads have left that were killed before theirs."""
        for file_id, key in keys.items():
            if not _has_record(folders.get(file_id, ())):
                self._delete([key.path], "strays")
        for name, entries in folders.items():
            if is_file_id(name) and not _has_record(entries) and self._is_older(entries, STRAYS_KEPT):
                self._delete([entry.path for entry in entries], "strays")
                self.store.root.delete([layout.file_folder(name)])  # on a disk, the folder

    def unnamed(self, folders: Mapping[str, list[Entry]]) -> None:
        """Delete what servers, tasks and drivers have left that were killed before their file had its name.

        Such files in datasets are their jobs' to delete.
        """
        age = STRAYS_KEPT + time.time() - self.now
        for place in (layout.FILES, layout.USERS, layout.CREATES, layout.BATCHES):
            left = folder(f"{self.store.root.uri}/{place}").abandoned(age)
            if place == layout.BATCHES:
                left = [path for path in left if path.split("/")[1] != layout.BATCH_DATASET]
            self._delete([f"{place}/{path}" for path in left], "strays")
            if place == layout.FILES:
                dead = {path.partition("/")[0] for path in left} - folders.keys()
                self.store.root.delete([layout.file_folder(name) for name in sorted(dead)])

    def old_creates(self) -> None:
        """Delete which batch was made for which request, a log at a time."""
        for entries in self.folders(layout.CREATES).values():
            if self._is_older(entries, CREATES_KEPT):
                # The newest first: readers find the end of a log by its numbers.
                self._delete([entry.path for entry in reversed(entries)], "creates")

    def folders(self, place: str) -> dict[str, list[Entry]]:
        """What lies below `place`, by folder."""
        found = defaultdict(list)
        for entry in self.store.root.list(place):
            found[entry.path.removeprefix(f"{place}/").partition("/")[0]].append(entry)
        return found

    def _is_older(self, entries: Iterable[Entry], seconds: float) -> bool:
        return max(entry.modified for entry in entries) + seconds <= self.now

    def _is_over(self, expires_at: float) -> bool:
        return expires_at + SLACK <= self.now

    def _files_of(self, batch_id: str) -> list[FileRecord]:
        """The files of a batch that are there."""
        found = (self.store.file(output_file_id(batch_id, kind)) for kind in _KINDS)
        return [record for record in found if record is not None]

    def _delete_dataset(self, batch_id: str) -> None:
        place = dataset_of(batch_id)
        if paths := self._paths(place):
            self.store.root.delete(paths)
            self.datasets.add(batch_id)
        self.store.root.delete([place])  # on a disk, the folders

    def _paths(self, place: str) -> list[str]:
        """The files below a folder.

        :raises StorageError: a node of the cluster has made a link there, and what it leads to is foreign.
        """
        paths = [entry.path for entry in self.store.root.list(place)]
        check_no_links(self.store.root, [place, *paths])
        return paths

    def _delete(self, paths: list[str], kind: str) -> None:
        self.store.root.delete(paths)
        self.deleted[kind] += len(paths)


def _has_record(entries: Iterable[Entry]) -> bool:
    return any(entry.path.endswith(f"/{layout.SIGNED_RECORD}") for entry in entries)
