# SPDX-License-Identifier: Apache-2.0
"""Write a large file piece by piece, before its size is known and with little of it in memory.

On a disk the pieces go to a scratch file beside the target. In S3 they are parts of an upload, which are sent
while the writer goes on. Readers see nothing before all is written, also if the writer fails or is killed. A
killed one leaves its scratch file, which :meth:`Folder.abandoned` lists, or an unfinished upload, which the
bucket's lifecycle rule ends.
"""

from __future__ import annotations

import contextlib
import os
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_provider_raybatch.contract.failures import RaybatchError
from airflow_provider_raybatch.contract.layout import SCRATCH
from airflow_provider_raybatch.storage import errors, local_files
from airflow_provider_raybatch.storage.errors import StorageError, local_errors, s3_error, with_retries
from airflow_provider_raybatch.storage.file import REQUEST_BYTES, inside
from airflow_provider_raybatch.storage.folder import Folder
from airflow_provider_raybatch.storage.s3_folder import S3Folder
from airflow_provider_raybatch.storage.s3_store import new_store, s3_store

if TYPE_CHECKING:
    from obstore import WritableFile

_AT_ONCE = 2
"""Parts that are sent at once; as many as that and one more are in memory, of :data:`REQUEST_BYTES` each."""

_WRITER = "raybatch-writer"
"""Metadata of an object: which writer's upload it is."""


class WriteStream(ABC):
    """A file that is being written, by one thread at a time."""

    def __init__(self) -> None:
        self._failure: RaybatchError | None = None

    def write(self, piece: bytes) -> None:
        """Append to the file; waits where the disk or S3 is slower than the caller.

        :raises StorageError: it can't be written. Every later call fails, too.
        """
        if self._failure:
            raise self._failure
        try:
            self._append(piece)
        except RaybatchError as error:
            self._failure = error
            raise

    def complete(self) -> None:
        """Give the file its name. :raises StorageError: it can't be done, or an earlier call failed."""
        if self._failure:
            raise self._failure
        self._finish()

    @abstractmethod
    def abort(self) -> None:
        """Remove what was written, as far as that is possible. Raises nothing."""

    @abstractmethod
    def _append(self, piece: bytes) -> None: ...

    @abstractmethod
    def _finish(self) -> None: ...


@contextlib.contextmanager
def write_stream(
    place: Folder, path: str, again: Callable[[], Folder] | None = None
) -> Iterator[WriteStream]:
    """Write the file `path`, or replace it; it appears when the block ends without an exception.

    :param place: in S3, a file has at most 10,000 parts of 8 MiB: 78 GiB.
    :param again: makes the place with credentials as they are now, for a writer that may outlive those of a
        role. Called in any thread.
    :raises StorageError: it can't be written.
    """
    stream = _S3Stream(place, path, again) if isinstance(place, S3Folder) else _DiskStream(place, path)
    try:
        yield stream
        stream.complete()
    except BaseException:
        stream.abort()
        raise


class _DiskStream(WriteStream):
    def __init__(self, place: Folder, path: str) -> None:
        super().__init__()
        self._target = inside(place.uri, path)
        self._scratch = self._target.parent / f"{SCRATCH}{uuid.uuid4().hex}"
        made = self._target.parent
        self._made = None if made == Path(place.uri) or made.exists() else made
        with local_errors("write", self._target):
            local_files.make_folder(self._target.parent)
            self._file = self._scratch.open("wb")

    def _append(self, piece: bytes) -> None:
        with local_errors("write", self._target):
            self._file.write(piece)

    def _finish(self) -> None:
        with local_errors("write", self._target):
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            self._scratch.replace(self._target)
            local_files.sync_folder(self._target.parent)

    def abort(self) -> None:
        with contextlib.suppress(OSError):  # what is still in its buffer may not fit on the disk either
            self._file.close()
        with contextlib.suppress(OSError):
            self._scratch.unlink(missing_ok=True)
            if self._made is not None:
                local_files.remove_empty(self._made)


class _S3Stream(WriteStream):
    """What is smaller than a part is written by one request, as every other file."""

    def __init__(self, place: S3Folder, path: str, again: Callable[[], Folder] | None = None) -> None:
        super().__init__()
        self._first_place, self._again = place, again
        self._path = path
        self._key = place.key(path)
        self._uri = f"s3://{place.bucket}/{self._key}"
        self._name = uuid.uuid4().hex
        self._first = bytearray()
        self._upload: WritableFile | None = None

    @property
    def _place(self) -> S3Folder:
        found = self._first_place if self._again is None else self._again()
        return found if isinstance(found, S3Folder) else self._first_place

    def _append(self, piece: bytes) -> None:
        if (upload := self._upload) is not None:
            self._call(lambda: upload.write(piece))
            return
        self._first += piece
        if len(self._first) >= REQUEST_BYTES:
            content = bytes(self._first)
            self._upload = with_retries(lambda: self._begin(content), "write", self._uri)
            self._first.clear()

    def _begin(self, content: bytes) -> WritableFile:
        from obstore import open_writer

        # Later pieces are gone once they are taken, so obstore itself repeats parts until the time is over.
        limits = errors.RETRY_LIMITS
        again = limits.repeats + int(limits.whole / limits.longest_pause)
        place, patient = self._place, replace(limits, repeat=limits.whole, repeats=again)
        if self._again is None:
            store = s3_store(place.bucket, place.credentials, patient)
        else:
            store = new_store(place.bucket, place.credentials, patient, lambda: self._place.credentials)
        upload = open_writer(
            store,
            self._key,
            attributes={_WRITER: self._name},
            buffer_size=REQUEST_BYTES,
            max_concurrency=_AT_ONCE,
        )
        upload.write(content)
        return upload

    def _call(self, call: Callable[[], object]) -> None:
        try:
            call()
        except Exception as error:
            raise s3_error("write", self._uri, error) from error

    def _finish(self) -> None:
        if self._upload is None:
            self._place.write(self._path, bytes(self._first))
            return
        upload, self._upload = self._upload, None
        try:
            self._call(upload.close)
        except StorageError:
            # If the answer was lost, a repeated call finds no upload: S3 forgets those that it has completed.
            if not self._is_there():
                raise

    def _is_there(self) -> bool:
        """Whether the object is what this writer uploaded."""
        place = self._place
        store = s3_store(place.bucket, place.credentials)

        def attempt() -> bool:
            try:
                found = store.get(self._key, options={"head": True})
            except FileNotFoundError:
                return False
            return found.attributes.get(_WRITER) == self._name

        with contextlib.suppress(StorageError):
            return with_retries(attempt, "read", self._uri)
        return False

    def abort(self) -> None:
        upload, self._upload = self._upload, None
        if upload is not None:
            # It is given the failure. Where S3 can't be reached, the bucket's lifecycle rule ends the upload.
            with contextlib.suppress(Exception):
                upload.__exit__(StorageError, None, None)
