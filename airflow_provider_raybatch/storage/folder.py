# SPDX-License-Identifier: Apache-2.0
"""Folders on local disks and in S3, with the operation that the commit relies on: create unless it exists.

pyarrow's S3 file system has no conditional put, obstore has (``If-None-Match: *``). On local disks and NFS,
link(2) fails if the name is taken, which gives the same guarantee.

Readers never see half a file: on a disk it has a hidden scratch name beside its target, in S3 it is an upload
that was never completed. What survives a power loss: ``docs/internals/commit.md``.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, BinaryIO, Protocol

from airflow_provider_raybatch.contract.failures import FailureClass
from airflow_provider_raybatch.contract.layout import SCRATCH
from airflow_provider_raybatch.contract.location import local_path, split_s3
from airflow_provider_raybatch.contract.secrets import AwsCredentials
from airflow_provider_raybatch.storage import local_files
from airflow_provider_raybatch.storage.errors import StorageError, TakenError, local_errors
from airflow_provider_raybatch.storage.file import Entry, inside, several
from airflow_provider_raybatch.storage.s3_folder import S3Folder

_NO_LINKS = frozenset({errno.EPERM, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP})
"""Errors of link(2) on FAT, for example, and in buckets that are mounted as folders."""

_BLOCK = 1024 * 1024


class ReadableFolder(Protocol):
    """A place with files. Paths are relative to `uri`, with forward slashes. Picklable.

    All methods raise :class:`StorageError` if they can't do their work.
    """

    @property
    def uri(self) -> str:
        """Where the folder is, without a trailing slash."""

    def list(self, prefix: str = "", depth: int | None = None) -> list[Entry]:
        """All files below `prefix`, recursively, sorted by path; none if it does not exist.

        Symbolic links to folders are followed, but each folder is listed once: under its own name if it lies
        below `prefix`, else under the first name that leads there.

        :param depth: levels to list; 1 for the files of the folder itself.
        """

    def holds(self, prefix: str) -> bool:
        """Whether any file lies below the folder `prefix`."""

    def head(self, path: str) -> Entry | None:
        """One file, ``None`` if there is none."""

    def read(self, path: str) -> bytes:
        """A whole file."""

    def read_range(self, path: str, start: int, length: int) -> bytes:
        """`length` bytes from byte `start` on, in one request; fewer where the file ends.

        :param length: at least 1.
        """


class Folder(ReadableFolder, Protocol):
    """A place that files are also written to; see :class:`ReadableFolder`."""

    def open(self, path: str, size: int | None = None) -> BinaryIO:
        """A seekable file object for reading.

        :param size: bytes, if known from a listing or the writer; saves a request.
        """

    def write(self, path: str, content: bytes | IO[bytes]) -> None:
        """Write a file; readers see the old content or the new, never a part.

        :param content: or an open, seekable file with it, which is read from its beginning, in pieces.
        """

    def create(self, path: str, content: bytes) -> None:
        """Write a file unless the name is taken.

        :param content: different from every other writer's: if the answer to a successful call is lost, the
            repeated call finds the name taken, and only the content shows whose file it is.
        :raises TakenError: the name is taken.
        """

    def replace(self, path: str, old: bytes | None, new: bytes) -> None:
        """Write a small file if it still holds `old`.

        :param old: ``None`` for a file that must not exist.
        :param new: different from what any other writer writes there.
        :raises TakenError: it holds something else, or a concurrent writer was changing it.
        """

    def sync(self, path: str = "") -> None:
        """Make the names in a folder survive a power loss, also those that a dead process wrote."""

    def delete(self, paths: Iterable[str]) -> None:
        """Delete files, and on a disk folders; missing ones are ignored.

        :raises StorageError: one can't be deleted, or a path leads out of this folder.
        """

    def abandoned(self, age: float) -> Sequence[str]:
        """Half-written files below this folder, without a write for `age` seconds. Listings leave them out.

        None in S3: a bucket's lifecycle rule ends unfinished uploads.
        """


@dataclass(frozen=True)
class LocalFolder:
    """A folder of a file system that all nodes see under the same path."""

    root: str

    @property
    def uri(self) -> str:
        return self.root

    def _path(self, path: str) -> Path:
        return inside(self.root, path)

    def list(self, prefix: str = "", depth: int | None = None) -> list[Entry]:
        start = self._path(prefix)
        with local_errors("list", start):
            found = [self._entry(start)] if start.is_file() else self._entries(start, depth)
        return sorted(found, key=lambda entry: entry.path)

    def folders(self, prefix: str = "") -> Sequence[str]:
        """Names of the folders directly below `prefix`."""
        with local_errors("list", self._path(prefix)):
            return sorted(path.name for path in self._path(prefix).iterdir() if path.is_dir())

    def holds(self, prefix: str) -> bool:
        with local_errors("list", self._path(prefix)):
            return next(_files(self._path(prefix), through_links=False), None) is not None

    def _entries(self, start: Path, depth: int | None) -> Sequence[Entry]:
        found = []
        for path in _files(start, through_links=True, depth=depth):
            try:
                if not path.name.startswith(SCRATCH):
                    found.append(self._entry(path))
            except OSError as error:
                # A link to nothing or to itself, or gone since the folder was read.
                if error.errno not in (errno.ENOENT, errno.ELOOP):
                    raise
        return found

    def _entry(self, path: Path) -> Entry:
        stat = path.stat()
        name, version = path.relative_to(self.root).as_posix(), f"{stat.st_mtime_ns}-{stat.st_size}"
        return Entry(name, stat.st_size, version, stat.st_mtime)

    def head(self, path: str) -> Entry | None:
        full = self._path(path)
        with local_errors("read", full):  # a folder above it that may not be listed
            return self._entry(full) if full.is_file() else None

    def read(self, path: str) -> bytes:
        with local_errors("read", self._path(path)):
            return self._path(path).read_bytes()

    def read_range(self, path: str, start: int, length: int) -> bytes:
        with local_errors("read", self._path(path)), self._path(path).open("rb") as stream:
            stream.seek(start)
            return stream.read(length)

    def open(self, path: str, size: int | None = None) -> BinaryIO:
        with local_errors("read", self._path(path)):
            return self._path(path).open("rb")

    def write(self, path: str, content: bytes | IO[bytes]) -> None:
        self._put(path, content, exclusive=False)

    def create(self, path: str, content: bytes) -> None:
        self._put(path, content, exclusive=True)

    def _put(self, path: str, content: bytes | IO[bytes], exclusive: bool) -> None:
        target = self._path(path)
        scratch = target.parent / f"{SCRATCH}{uuid.uuid4().hex}"
        with local_errors("write", target):
            local_files.make_folder(target.parent)
            try:
                self._fill(scratch, content)
                self._name(scratch, target, exclusive)
                local_files.sync_folder(target.parent)
            finally:
                scratch.unlink(missing_ok=True)

    @staticmethod
    def _fill(scratch: Path, content: bytes | IO[bytes]) -> None:
        with scratch.open("wb") as file:
            if isinstance(content, bytes):
                file.write(content)
            else:
                content.seek(0)
                shutil.copyfileobj(content, file, _BLOCK)
            file.flush()
            os.fsync(file.fileno())

    @staticmethod
    def _name(scratch: Path, target: Path, exclusive: bool) -> None:
        if not exclusive:
            scratch.replace(target)
            return
        try:
            os.link(scratch, target)
        except FileExistsError as error:
            # NFS repeats a link(2) whose answer was lost: then the scratch file has two names.
            if scratch.stat().st_nlink != 2:
                raise TakenError(f"destination: {target} exists already.") from error
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            raise StorageError(
                f"{target}: its file system has no hard links ({error.strerror}), so two jobs could publish "
                "there at once; choose a folder on a local disk, on NFS or in a bucket.",
                FailureClass.USER_ERROR,
            ) from error

    def replace(self, path: str, old: bytes | None, new: bytes) -> None:
        # Rivals exclude each other by their scratch files, without which they can't rename. The later one
        # removes the other's; if that was renamed before, it sees the target changed.
        if old is None:
            self.create(path, new)
            return
        target = self._path(path)
        rivals = f"{SCRATCH}{target.name}-"
        scratch = target.parent / f"{rivals}{uuid.uuid4().hex}"
        with local_errors("write", target):
            try:
                self._fill(scratch, new)
                for one in target.parent.iterdir():
                    if one.name.startswith(rivals) and one != scratch:
                        one.unlink(missing_ok=True)
                if target.read_bytes() != old:
                    raise TakenError(f"destination: {target} has changed.")
                scratch.replace(target)
                local_files.sync_folder(target.parent)
            except FileNotFoundError as error:
                raise TakenError(f"destination: {target} is being changed by another job.") from error
            finally:
                scratch.unlink(missing_ok=True)

    def sync(self, path: str = "") -> None:
        full = self._path(path)
        with local_errors("write", full), contextlib.suppress(FileNotFoundError):
            local_files.sync_folder(full)

    def delete(self, paths: Iterable[str]) -> None:
        for path in several(paths):
            full = self._path(path)
            with local_errors("delete", full), contextlib.suppress(FileNotFoundError, NotADirectoryError):
                if full.is_dir():
                    local_files.remove_folder(full)
                else:
                    full.unlink(missing_ok=True)

    def abandoned(self, age: float) -> Sequence[str]:
        latest, found = time.time() - age, []
        with local_errors("list", Path(self.root)):
            # Not through links: what lies behind them may be foreign, and these files are deleted.
            for path in _files(Path(self.root), through_links=False):
                with contextlib.suppress(FileNotFoundError):
                    if path.name.startswith(SCRATCH) and path.stat().st_mtime < latest:
                        found.append(path.relative_to(self.root).as_posix())
        return sorted(found)


def _files(start: Path, through_links: bool, depth: int | None = None) -> Iterator[Path]:
    """All files below a folder; none if it is missing, but an error if it can't be read."""

    def refuse(error: OSError) -> None:
        if not isinstance(error, (FileNotFoundError, NotADirectoryError)):
            raise error

    root = start.resolve()
    listed = {root}
    for folder, subfolders, names in os.walk(start, onerror=refuse, followlinks=through_links):
        for name in names:
            yield Path(folder, name)
        if depth is not None and len(Path(folder).relative_to(start).parts) + 1 >= depth:
            subfolders.clear()
        elif through_links:
            subfolders[:] = [name for name in sorted(subfolders) if _is_new(Path(folder, name), root, listed)]


def _is_new(path: Path, root: Path, listed: set[Path]) -> bool:
    """Whether a folder below `root` is to be listed under this name; from now on it counts as listed."""
    real = path.resolve()
    if real in listed or (path.is_symlink() and real.is_relative_to(root)):
        return False
    listed.add(real)
    return True


def folder(uri: str, credentials: AwsCredentials | None = None) -> Folder:
    """The folder at `uri`.

    :param uri: local path, ``file://`` or ``s3://``.
    :param credentials: for S3; ``None`` for the cluster's own identity.
    """
    if s3 := split_s3(uri):
        bucket, prefix = s3
        return S3Folder(bucket, prefix.strip("/"), credentials)
    # Not resolved: a symbolic link may lead elsewhere on another node, or later.
    return LocalFolder(os.path.normpath(Path(local_path(uri)).absolute()))
