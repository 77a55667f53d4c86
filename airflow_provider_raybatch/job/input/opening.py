# SPDX-License-Identifier: Apache-2.0
"""Open a source file for random access, wherever it lies and however it is compressed."""

from __future__ import annotations

import codecs
import contextlib
import functools
import gzip
import io
import pathlib
import tempfile
import threading
import zlib
from collections import defaultdict
from dataclasses import dataclass, replace
from typing import IO, Any, BinaryIO, cast

import pyarrow as pa

from airflow_provider_raybatch.contract.failures import PreflightError
from airflow_provider_raybatch.contract.secrets import AwsCredentials
from airflow_provider_raybatch.job.input import http
from airflow_provider_raybatch.job.input.content import real_format
from airflow_provider_raybatch.job.input.hub import HubFolder
from airflow_provider_raybatch.job.input.listing import SourceFile, open_place
from airflow_provider_raybatch.storage.errors import StorageError
from airflow_provider_raybatch.storage.file import REQUEST_BYTES, Entry, RangedFile
from airflow_provider_raybatch.storage.folder import LocalFolder, ReadableFolder
from airflow_provider_raybatch.storage.s3_folder import S3Folder

_MOST_SPOOLS = 64
"""Unpacked files that a process keeps open, on the scratch disk."""
MOST_UNPACKED = 256 * 2**30
"""Bytes of a packed file's content, so that a bomb does not fill a disk that others need."""
SMALL_FILE = 1024 * 1024
"""Bytes of a file in a store that is read by one request: a second one would take longer."""
_TINY_FILE = 64 * 1024
"""The same for a file of which only some rows are wanted."""
_BLOCK = 1024 * 1024
_LOCKS: defaultdict[SourceFile, threading.Lock] = defaultdict(threading.Lock)


def open_file(file: SourceFile, credentials: AwsCredentials | None, ahead: bool = True) -> BinaryIO:
    """The decompressed content, seekable.

    Compressed files, files behind ``https://`` and CSV in another encoding than UTF-8 allow no random access,
    so they are unpacked into scratch files without a name, which end with the process.

    :param ahead: whether a store is asked for megabytes at a time, for a file that is read to its end; else
        each read is a request for exactly its bytes.
    :raises PreflightError: the file is not what its extension says.
    :raises StorageError: it can't be read, or is no longer what was listed.
    """
    if not http.is_url(file.place) and file.compression is None and file.other_encoding is None:
        return _open_plain(file, credentials, ahead)
    with _LOCKS[file]:  # a file is unpacked once, and others meanwhile
        spool = _spool(file, credentials)
        # Readable from here on, also when others drop the spool; with a position of its own.
        return pathlib.Path(f"/proc/self/fd/{spool.fileno()}").open("rb")


def changed(file: SourceFile) -> StorageError:
    """The error of a file that has changed since it was listed."""
    remedy = " Where it changes with each answer, copy it into a bucket." if http.is_url(file.uri) else ""
    return StorageError(f"source: {file.shown} changed while the job ran; run the task again.{remedy}")


def _no_room(what: str, error: OSError) -> StorageError:
    """The error of a scratch file that can't be written; `what` begins its sentence."""
    return StorageError(
        f"source: {what} into {tempfile.gettempdir()} ({error.strerror or error}); make room there, or set "
        "TMPDIR to another folder on the cluster's nodes."
    )


@functools.lru_cache(_MOST_SPOOLS)
def _spool(file: SourceFile, credentials: AwsCredentials | None) -> IO[bytes]:
    spool = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
    try:
        if file.other_encoding is None:
            _fill(spool, file, credentials)
        else:
            with tempfile.TemporaryFile() as encoded:
                _fill(encoded, file, credentials)
                _recode(file, encoded, spool)
        spool.flush()
    except OSError as error:
        with contextlib.suppress(OSError):
            spool.close()  # gives its room back, and fails as the flush did
        raise _no_room(f"{file.shown} can't be unpacked", error) from error
    return spool


def _fill(spool: IO[bytes], file: SourceFile, credentials: AwsCredentials | None) -> None:
    if http.is_url(file.place):
        if file.compression is None:
            return _fetch(file, spool)
        with tempfile.TemporaryFile() as packed:
            _fetch(file, packed)
            return _unpack(file, packed, spool)
    place, path = open_place(file.place, credentials, file.token)
    try:
        with _open_plain(file, credentials) as listed:
            return _unpack(file, listed, spool)
    finally:  # what was replaced meanwhile may look damaged, or have become a mixture
        if not isinstance(place, S3Folder):
            _check_listed(file, place, path)


def _fetch(file: SourceFile, into: IO[bytes]) -> None:
    if not http.fetch(file.uri, file.size, file.version, into):
        raise changed(file)


def _open_plain(file: SourceFile, credentials: AwsCredentials | None, ahead: bool = True) -> BinaryIO:
    if file.content is not None:
        return io.BytesIO(file.content)
    place, path = open_place(file.place, credentials, file.token)
    entry = Entry(path, file.size, file.version)
    if isinstance(place, (S3Folder, HubFolder)):
        is_small = file.size <= (SMALL_FILE if ahead else _TINY_FILE)
        ranges = RangedFile(_as_listed(file, place), entry, whole=is_small)
        return cast(
            "BinaryIO", io.BufferedReader(ranges, REQUEST_BYTES) if ahead and not is_small else ranges
        )
    _check_listed(file, place, path)
    return (
        place.open(path)
        if ahead and isinstance(place, LocalFolder)
        else cast(BinaryIO, RangedFile(place, entry))
    )


def with_content(file: SourceFile, credentials: AwsCredentials | None) -> SourceFile:
    """A small object with its content, read by one request; any other file as it is.

    :raises StorageError: it can't be read, or is no longer what was listed.
    """
    place, path = open_place(file.place, credentials, file.token)
    is_remote = isinstance(place, (S3Folder, HubFolder))
    if http.is_url(file.place) or not is_remote or file.size > SMALL_FILE:
        return file
    return replace(file, content=_as_listed(file, place).read_range(path, 0, file.size))


def _as_listed(file: SourceFile, place: ReadableFolder) -> ReadableFolder | _AsListed:
    """Ranges of a file that was listed; what lies at a commit of the hub never changes."""
    return _AsListed(file, place) if isinstance(place, S3Folder) else place


@dataclass(frozen=True)
class _AsListed:
    """Ranges of an object; each answer shows whether it is still the one that was listed."""

    file: SourceFile
    place: S3Folder

    def read_range(self, path: str, start: int, length: int) -> bytes:
        """See :class:`~airflow_provider_raybatch.storage.folder.Folder`."""
        if not length:
            return b""
        try:
            content, version = self.place.read_version(path, start, length)
        except StorageError:
            _check_listed(self.file, self.place, path)  # says so if it is gone, or shorter
            raise
        if len(content) < length or _is_other(self.file, version):
            raise changed(self.file)
        return content


def _is_other(file: SourceFile, etag: str) -> bool:
    """Whether an object is not the one that was listed.

    A store may write one ETag in several forms.
    """
    listed, found = (one.removeprefix("W/").strip('"') for one in (file.version, etag))
    return listed != found


def _check_listed(file: SourceFile, place: ReadableFolder, path: str) -> None:
    """:raises StorageError: a file is no longer the one that was listed."""
    found = place.head(path)
    # A disk's modification time is not compared: not every network file system shows all nodes the same.
    if (
        found is None
        or found.size != file.size
        or (isinstance(place, S3Folder) and _is_other(file, found.version))
    ):
        raise changed(file)


def _unpack(file: SourceFile, packed: IO[bytes], into: IO[bytes]) -> None:
    if file.compression is None:
        return _copy(file, packed, into)
    real = real_format(packed)
    packed.seek(0)
    if real is not None and real[0] != file.compression:
        ending = file.uri.partition("?")[0].rpartition(".")[2]
        raise PreflightError(
            f"source: {file.shown} is not {file.compression} but {real[0]}; remove .{ending} from its name."
        )
    try:
        if file.compression == "gzip":
            with gzip.open(packed) as unpacked:
                _copy(file, unpacked, into)
        else:
            with pa.CompressedInputStream(pa.PythonFile(packed, mode="r"), "zstd") as unpacked:
                _copy(file, unpacked, into)
    except (OSError, EOFError, zlib.error) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # of a disk, which says nothing of the content
        raise PreflightError(
            f"source: {file.shown} can't be unpacked as {file.compression} ({error}); check it, or rename it "
            "if it is not compressed."
        ) from error


def _recode(file: SourceFile, encoded: IO[bytes], into: IO[bytes]) -> None:
    encoded.seek(0)
    decoder = codecs.getincrementaldecoder(str(file.other_encoding))()
    try:
        while block := encoded.read(_BLOCK):
            into.write(decoder.decode(block).encode())
        into.write(decoder.decode(b"", final=True).encode())
    except UnicodeError as error:
        what, then = (
            f"source: {file.shown} is not {file.csv.encoding} text",
            "set csv_options={'encoding': ...} to its own.",
        )
        raise PreflightError(f"{what} ({error}); {then}", public=f"{what}; {then}") from error


def _copy(file: SourceFile, unpacked: Any, into: IO[bytes]) -> None:
    copied = 0
    while block := unpacked.read(_BLOCK):
        copied += len(block)
        if copied > MOST_UNPACKED:
            raise PreflightError(
                f"source: {file.shown} unpacks to more than {MOST_UNPACKED // 2**30} GiB; split it, or write "
                "it as Parquet."
            )
        into.write(block)
