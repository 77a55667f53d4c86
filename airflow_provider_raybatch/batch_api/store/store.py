# SPDX-License-Identifier: Apache-2.0
"""Files and batches of the Batch API, as documents in a folder or a bucket.

Any process may die between two writes, and several may work on one batch: documents are created once, and
the order in which they are written is such that what exists is never without what it needs.
"""

from __future__ import annotations

import logging
import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

from airflow_provider_raybatch.batch_api.store.ids import (
    ListedBatch,
    ListedFile,
    file_key,
    is_batch_id,
    is_file_id,
    listed_batch,
    listed_file,
    newest_first,
    owner_digest,
)
from airflow_provider_raybatch.batch_api.store.records import (
    BatchEnd,
    BatchRecord,
    BatchState,
    FileRecord,
    Started,
    Triggered,
    opened,
    signed,
)
from airflow_provider_raybatch.batch_api.store.settings import BatchApiSettings
from airflow_provider_raybatch.contract import layout
from airflow_provider_raybatch.contract.arguments.openai_batch import BatchOutcome, BatchProgress
from airflow_provider_raybatch.contract.base import ContractModel, parse_file
from airflow_provider_raybatch.contract.failures import RaybatchError
from airflow_provider_raybatch.storage.errors import StorageError, TakenError
from airflow_provider_raybatch.storage.file import in_order
from airflow_provider_raybatch.storage.folder import Folder, folder
from airflow_provider_raybatch.storage.operations import check_no_links, first_names

Document = TypeVar("Document", bound=ContractModel)
Shown = TypeVar("Shown")
T = TypeVar("T")

_log = logging.getLogger(__name__)

_REMEDY = "restore it, or create the batch again"


def new_nonce() -> str:
    """Makes a document unlike any other's, see :meth:`Folder.create`."""
    return secrets.token_hex(8)


class KnownDocuments:
    """The documents that were used last, by their paths. Threads may share it.

    :param most: documents.
    :param most_bytes: of all, as they are stored; objects in memory take some ten times as much.
    """

    def __init__(self, most: int = 8_000, most_bytes: int = 16 * 2**20) -> None:
        self._most, self._most_bytes = most, most_bytes
        self._lock = threading.Lock()
        self._documents: OrderedDict[str, tuple[Any, int]] = OrderedDict()
        self._bytes = 0

    def get(self, path: str) -> Any:
        """A document; ``None`` where it is not kept."""
        with self._lock:
            if path in self._documents:
                self._documents.move_to_end(path)
            return self._documents.get(path, (None, 0))[0]

    def keep(self, path: str, document: T, size: int = 0) -> T:
        """Keep a document that no longer changes, and return it.

        :param size: bytes, as it is stored.
        """
        with self._lock:
            self._bytes += size - self._documents.pop(path, (None, 0))[1]
            self._documents[path] = document, size
            while len(self._documents) > self._most or self._bytes > self._most_bytes:
                self._bytes -= self._documents.popitem(last=False)[1][1]
        return document

    def get_or(self, path: str, read: Callable[[], T], size: int) -> T:
        """A document, which `read` reads where it is not kept."""
        found = self.get(path)
        return self.keep(path, read(), size) if found is None else found


@dataclass(frozen=True)
class BatchStore:
    """The documents below a root.

    :param secret: see :class:`~airflow_provider_raybatch.batch_api.store.settings.BatchApiSettings`.

    All methods raise :class:`StorageError` where the storage does not answer.
    """

    root: Folder
    secret: bytes = field(repr=False)
    _known: KnownDocuments = field(default_factory=KnownDocuments, init=False, repr=False, compare=False)

    def file(self, file_id: str) -> FileRecord | None:
        """The record of a file, whoever owns it; ``None`` if there is none.

        :raises ForgedRecordError: it is not signed by this Airflow.
        """
        if not is_file_id(file_id):
            return None
        return self._opened(_record_of(layout.file_folder(file_id)), FileRecord, f"file {file_id}")

    def add_file(self, record: FileRecord) -> None:
        """Keep the record of a file whose content is there; of an output file, several writers may."""
        path = _record_of(layout.file_folder(record.id))
        record = self._first_signed(path, record, f"file {record.id}")  # an earlier writer may have died here
        self._index(layout.FILES, record.owner, file_key(record))

    def delete_file(self, record: FileRecord) -> None:
        """Delete a file: its record first, so that no file is found without its content.

        :raises StorageError: on a disk, a piece is behind a link, so that a foreign file would be deleted.
        """
        check_no_links(self.root, [piece.path for piece in record.content])
        place = layout.file_folder(record.id)
        index = layout.user_index(owner_digest(record.owner), layout.FILES)
        self.root.delete([f"{index}/{file_key(record)}", _record_of(place)])
        self.root.delete([*(piece.path for piece in record.content), place])  # on a disk, also the folder

    def add_batch(self, record: BatchRecord) -> BatchRecord:
        """Keep the record of a batch, and list it; returns the one that counts, an earlier call's or this."""
        path = _record_of(layout.batch_folder(record.id))
        record = self._first_signed(path, record, f"batch {record.id}")
        self._index(layout.BATCHES, record.owner, newest_first(record.created_at, record.id))
        return record

    def record(self, batch_id: str) -> BatchRecord | None:
        """What was asked for; ``None`` if there is no such batch.

        :raises ForgedRecordError: it is not signed by this Airflow.
        """
        if not is_batch_id(batch_id):
            return None
        return self._opened(_record_of(layout.batch_folder(batch_id)), BatchRecord, f"batch {batch_id}")

    def state(self, batch_id: str) -> BatchState | None:
        """The batch as it is now; ``None`` if there is none.

        A poll of a batch that runs costs a listing and the progress; of one that has ended, nothing.

        :raises ForgedRecordError: a signed document of it is not signed by this Airflow.
        """
        if not is_batch_id(batch_id):
            return None
        place = layout.batch_folder(batch_id)
        if (over := self._known.get(place)) is not None:
            return cast(BatchState, over)
        found = {entry.path.rpartition("/")[2]: entry.size for entry in self.root.list(place, depth=1)}

        def once(name: str, parsed: Callable[[bytes], Document]) -> Document | None:
            path = f"{place}/{name}"
            if name not in found:
                return None
            return self._known.get_or(path, lambda: parsed(self.root.read(path)), found[name])

        def open_as(model: type[Document], kind: str) -> Callable[[bytes], Document]:
            return lambda content: opened(content, model, kind, self.secret)

        def parse_as(model: type[Document], name: str) -> Callable[[bytes], Document]:
            return lambda content: self._parsed(content, model, f"{place}/{name}")

        record = once(layout.SIGNED_RECORD, open_as(BatchRecord, f"batch {batch_id}"))
        if record is None:
            return None
        progress = self.root.read(f"{place}/{layout.PROGRESS}") if layout.PROGRESS in found else None
        state = BatchState(
            record,
            triggered=layout.TRIGGERED in found,
            started=once(layout.STARTED, parse_as(Started, layout.STARTED)),
            outcome=once(layout.OUTCOME, parse_as(BatchOutcome, layout.OUTCOME)),
            progress=None if progress is None else parse_as(BatchProgress, layout.PROGRESS)(progress),
            ended=once(layout.ENDED, open_as(BatchEnd, f"end of {batch_id}")),
        )
        return self._known.keep(place, state, sum(found.values())) if state.is_over else state

    def is_known_over(self, batch_id: str) -> bool:
        """Whether this process has seen that a batch is over; it asks no one."""
        return self._known.get(layout.batch_folder(batch_id)) is not None

    def ended(self, batch_id: str) -> BatchEnd | None:
        """The end of a batch; ``None`` before it.

        :raises ForgedRecordError: it is not signed by this Airflow.
        """
        return self._opened(f"{layout.batch_folder(batch_id)}/{layout.ENDED}", BatchEnd, f"end of {batch_id}")

    def mark_triggered(self, batch_id: str, at: float) -> None:
        """Note that Airflow has the DAG run."""
        self._put(batch_id, layout.TRIGGERED, Triggered(at=at, nonce=new_nonce()))

    def start(self, batch_id: str, started: Started) -> Started:
        """Note that the input is valid; an earlier attempt's note counts."""
        return self._first(batch_id, layout.STARTED, started, Started)

    def decide(self, batch_id: str, outcome: BatchOutcome) -> BatchOutcome:
        """Decide how a batch ends, unless that is decided; returns what counts."""
        return self._first(batch_id, layout.OUTCOME, outcome, BatchOutcome)

    def end(self, batch_id: str, end: BatchEnd) -> BatchEnd:
        """End a batch, unless it has ended; returns what counts. Records of its files come first."""
        path = f"{layout.batch_folder(batch_id)}/{layout.ENDED}"
        return self._first_signed(path, end, f"end of {batch_id}")

    def files(self, owner: str) -> list[ListedFile]:
        """A user's files, newest first; also such as have expired and are not deleted yet."""
        return [one for one in map(listed_file, self._keys(layout.FILES, owner)) if one is not None]

    def batches(
        self, owner: str, most: int | None = None, after: BatchRecord | None = None
    ) -> list[ListedBatch]:
        """A user's batches, newest first.

        :param most: batches; ``None`` for all, which may be many thousands.
        :param after: with `most`, the batch behind which the list begins; by default the newest is first.
        """
        behind = "" if after is None else newest_first(after.created_at, after.id)
        keys = self._keys(layout.BATCHES, owner, most, behind)
        return [one for one in map(listed_batch, keys) if one is not None]

    def _keys(self, of: str, owner: str, most: int | None = None, behind: str = "") -> list[str]:
        index = layout.user_index(owner_digest(owner), of)
        return first_names(self.root, index, most, behind)

    def _index(self, of: str, owner: str, key: str) -> None:
        self._create_once(f"{layout.user_index(owner_digest(owner), of)}/{key}", new_nonce().encode())

    def _put(self, batch_id: str, name: str, document: ContractModel) -> bool:
        path = f"{layout.batch_folder(batch_id)}/{name}"
        return self._create_once(path, document.model_dump_json().encode())

    def _first(self, batch_id: str, name: str, document: Document, model: type[Document]) -> Document:
        if self._put(batch_id, name, document):
            return document
        path = f"{layout.batch_folder(batch_id)}/{name}"
        return self._parsed(self.root.read(path), model, path)

    def _first_signed(self, path: str, document: Document, kind: str) -> Document:
        if self._create_once(path, signed(document, kind, self.secret)):
            return document
        return opened(self.root.read(path), type(document), kind, self.secret)

    def _create_once(self, path: str, content: bytes) -> bool:
        try:
            self.root.create(path, content)
        except TakenError:
            return False
        return True

    def _parsed(self, content: bytes, model: type[Document], path: str) -> Document:
        return parse_file(model, content, f"{self.root.uri}/{path}", "a document of a batch", _REMEDY)

    def _opened(self, path: str, model: type[Document], kind: str) -> Document | None:
        """A signed document; ``None`` where there is none."""
        if self.root.head(path) is None:
            return None
        try:
            return opened(self.root.read(path), model, kind, self.secret)
        except StorageError:
            if self.root.head(path) is None:  # deleted meanwhile
                return None
            raise


def _record_of(place: str) -> str:
    return f"{place}/{layout.SIGNED_RECORD}"


def usable(look: Callable[[str], Shown | None], ids: Iterable[str]) -> list[Shown]:
    """What `look` finds of files or batches, asked side by side; one that is damaged hides itself alone.

    :raises StorageError: the storage does not answer.
    """

    def guarded(one: str) -> Shown | None:
        try:
            return look(one)
        except StorageError:
            raise
        except RaybatchError as error:
            _log.error("%s is left out of a listing: %s", one, error)
            return None

    return [found for found in in_order(guarded, ids) if found is not None]


def batch_store(settings: BatchApiSettings) -> BatchStore:
    """The store that the settings name.

    :raises RayConnectionError: the connection of the bucket can't be used.
    """
    credentials = None
    if settings.aws_conn_id is not None:
        from airflow_provider_raybatch.hooks.credentials import aws_credentials

        credentials = aws_credentials(settings.aws_conn_id)
    return BatchStore(folder(settings.root, credentials), settings.secret)
