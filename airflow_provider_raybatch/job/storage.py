# SPDX-License-Identifier: Apache-2.0
"""Folders on local disks and in S3, with the operation that the commit stands on: create, unless it exists.

pyarrow's S3 file system has no conditional put, obstore has (``If-None-Match: *``). On local disks and NFS,
link(2) fails where the name is taken, which is the same promise.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import shutil
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol

from airflow_provider_raybatch.contract.location import local_path
from airflow_provider_raybatch.contract.secrets import AwsCredentials
from airflow_provider_raybatch.job.object_reader import ObjectReader
from airflow_provider_raybatch.job.s3_store import s3_store
from airflow_provider_raybatch.job.storage_errors import TakenError, local_error, s3_error

if TYPE_CHECKING:
    from obstore.store import S3Store


@dataclass(frozen=True)
class Entry:
    """One file of a listing. `path` is relative to the folder; `version` changes when the content does."""

    path: str
    size: int
    version: str


class Folder(Protocol):
    """A place for files.

    Paths are relative to `uri`, with forward slashes. Picklable, so that tasks can have it.
    """

    @property
    def uri(self) -> str:
        """Where the folder is, without a trailing slash."""

    def list(self, prefix: str = "") -> list[Entry]:
        """All files below `prefix`, recursively, sorted by path; none if there is no such folder."""

    def head(self, path: str) -> Entry | None:
        """One file, ``None`` if there is none."""

    def read(self, path: str) -> bytes:
        """A whole file. :raises StorageError: it can't be read."""

    def open(self, path: str) -> BinaryIO:
        """A seekable file object for reading. :raises StorageError: it can't be opened."""

    def write(self, path: str, content: bytes) -> None:
        """Write a file; readers see the old content or the new, never a part.

        :raises StorageError: it can't.
        """

    def create(self, path: str, content: bytes) -> None:
        """Write a file unless the name is taken.

        :raises TakenError: it is.
        :raises StorageError: it can't.
        """

    def delete(self, paths: Iterable[str]) -> None:
        """Delete files; missing ones are no error."""


@dataclass(frozen=True)
class LocalFolder:
    """A folder of a file system that all nodes see under the same path."""

    root: str

    @property
    def uri(self) -> str:
        """The absolute path."""
        return self.root

    def _path(self, path: str) -> Path:
        return Path(self.root, path) if path else Path(self.root)

    def list(self, prefix: str = "") -> list[Entry]:
        """See :class:`Folder`. Unfinished writes of this class (dot files) are left out."""
        start = self._path(prefix)
        if start.is_file():
            return [self._entry(start)]
        found = []
        for folder, _, names in os.walk(start):
            for name in names:
                # A dangling link, or gone since the folder was read.
                with contextlib.suppress(FileNotFoundError):
                    if not name.startswith(".raybatch-"):
                        found.append(self._entry(Path(folder, name)))
        return sorted(found, key=lambda entry: entry.path)

    def _entry(self, path: Path) -> Entry:
        stat = path.stat()
        return Entry(
            path.relative_to(self.root).as_posix(), stat.st_size, f"{stat.st_mtime_ns}-{stat.st_size}"
        )

    def head(self, path: str) -> Entry | None:
        """See :class:`Folder`."""
        full = self._path(path)
        try:
            return self._entry(full) if full.is_file() else None
        except OSError as error:  # a folder on the way that nobody may look into
            raise local_error("read", full, error) from error

    def read(self, path: str) -> bytes:
        """See :class:`Folder`."""
        try:
            return self._path(path).read_bytes()
        except OSError as error:
            raise local_error("read", self._path(path), error) from error

    def open(self, path: str) -> BinaryIO:
        """See :class:`Folder`."""
        try:
            return self._path(path).open("rb")
        except OSError as error:
            raise local_error("read", self._path(path), error) from error

    def write(self, path: str, content: bytes) -> None:
        """See :class:`Folder`."""
        self._put(path, content, exclusive=False)

    def create(self, path: str, content: bytes) -> None:
        """See :class:`Folder`."""
        self._put(path, content, exclusive=True)

    def _put(self, path: str, content: bytes, exclusive: bool) -> None:
        target = self._path(path)
        scratch = target.parent / f".raybatch-{uuid.uuid4().hex}"
        try:
            self._make_folder(target.parent)
            try:
                with scratch.open("wb") as file:
                    file.write(content)
                    file.flush()
                    os.fsync(file.fileno())
                self._name(scratch, target, exclusive)
            finally:
                scratch.unlink(missing_ok=True)
        except OSError as error:
            raise local_error("write", target, error) from error

    @staticmethod
    def _make_folder(path: Path) -> None:
        try:
            path.mkdir(parents=True, exist_ok=True)
        except FileExistsError:
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR)) from None

    @staticmethod
    def _name(scratch: Path, target: Path, exclusive: bool) -> None:
        if not exclusive:
            scratch.replace(target)
            return
        try:
            os.link(scratch, target)
        except FileExistsError as error:
            raise TakenError(f"destination: {target} exists already.") from error

    def delete(self, paths: Iterable[str]) -> None:
        """See :class:`Folder`."""
        for path in paths:
            full = self._path(path)
            if full.is_dir():
                shutil.rmtree(full, ignore_errors=True)
            else:
                full.unlink(missing_ok=True)


@dataclass(frozen=True)
class S3Folder:
    """A prefix of a bucket, reached through obstore.

    :param credentials: ``None`` means the cluster's own identity (environment, profile, instance role).
    """

    bucket: str
    prefix: str
    credentials: AwsCredentials | None = None

    @property
    def uri(self) -> str:
        """``s3://bucket/prefix``."""
        return f"s3://{self.bucket}/{self.prefix}" if self.prefix else f"s3://{self.bucket}"

    def _store(self) -> S3Store:
        return s3_store(self.bucket, self.credentials)

    def _key(self, path: str) -> str:
        return "/".join(part for part in (self.prefix, path) if part)

    def _relative(self, key: str) -> str:
        return key[len(self.prefix) + 1 :] if self.prefix else key

    def list(self, prefix: str = "") -> list[Entry]:
        """See :class:`Folder`."""
        import obstore

        key = self._key(prefix)
        try:
            found = [meta for chunk in obstore.list(self._store(), prefix=key or None) for meta in chunk]
        except Exception as error:
            raise s3_error("list", f"s3://{self.bucket}/{key}", error) from error
        entries = [
            Entry(self._relative(meta["path"]), meta["size"], str(meta["e_tag"] or "")) for meta in found
        ]
        if not entries and key and (single := self.head(prefix)):
            entries = [single]
        return sorted(entries, key=lambda entry: entry.path)

    def head(self, path: str) -> Entry | None:
        """See :class:`Folder`."""
        import obstore

        key = self._key(path)
        if not key:
            return None  # the bucket itself is no file
        try:
            meta = obstore.head(self._store(), key)
        except FileNotFoundError:
            return None
        except Exception as error:
            raise s3_error("read", f"s3://{self.bucket}/{key}", error) from error
        return Entry(path, meta["size"], str(meta["e_tag"] or ""))

    def read(self, path: str) -> bytes:
        """See :class:`Folder`."""
        import obstore

        key = self._key(path)
        try:
            return bytes(obstore.get(self._store(), key).bytes())
        except Exception as error:
            raise s3_error("read", f"s3://{self.bucket}/{key}", error) from error

    def open(self, path: str) -> BinaryIO:
        """See :class:`Folder`."""
        import obstore

        key = self._key(path)
        try:
            reader = obstore.open_reader(self._store(), key, buffer_size=8 * 1024 * 1024)
        except Exception as error:
            raise s3_error("read", f"s3://{self.bucket}/{key}", error) from error
        return io.BufferedReader(ObjectReader(reader))

    def write(self, path: str, content: bytes) -> None:
        """See :class:`Folder`."""
        self._put(path, content, "overwrite")

    def create(self, path: str, content: bytes) -> None:
        """See :class:`Folder`."""
        self._put(path, content, "create")

    def _put(self, path: str, content: bytes, mode: Any) -> None:
        import obstore
        from obstore.exceptions import AlreadyExistsError

        key = self._key(path)
        try:
            # A conditional put must be one request: a multipart upload has no If-None-Match on its start.
            obstore.put(
                self._store(), key, content, mode=mode, use_multipart=False if mode == "create" else None
            )
        except AlreadyExistsError as error:
            raise TakenError(f"destination: s3://{self.bucket}/{key} exists already.") from error
        except Exception as error:
            raise s3_error("write", f"s3://{self.bucket}/{key}", error) from error

    def delete(self, paths: Iterable[str]) -> None:
        """See :class:`Folder`."""
        import obstore

        keys = [self._key(path) for path in paths]
        if keys:
            try:
                obstore.delete(self._store(), keys)
            except FileNotFoundError:
                return
            except Exception as error:
                raise s3_error("delete", f"s3://{self.bucket}/{keys[0]}", error) from error


def folder(uri: str, credentials: AwsCredentials | None = None) -> Folder:
    """The folder at `uri`.

    :param uri: local path, ``file://`` or ``s3://``.
    :param credentials: for S3; ``None`` for the cluster's own identity.
    """
    if uri.startswith("s3://"):
        bucket, _, prefix = uri[5:].partition("/")
        return S3Folder(bucket, prefix.strip("/"), credentials)
    # Not resolved: a symbolic link may lead elsewhere on another node, or later.
    return LocalFolder(os.path.normpath(Path(local_path(uri)).absolute()))
