# SPDX-License-Identifier: Apache-2.0
"""Images where they lie: in files that the node sees, in S3, and behind ``https://``.

An outage of a host must not fail rows, and a row must not fail the job. So a host that can't be reached, or
is overloaded, is an error of the job. All else that a server does with one URL is an error of the row.

Links are resolved, and the result must lie below the root. The file that was opened must be that one, so that
nothing is read through a link that is made meanwhile.
"""

from __future__ import annotations

import contextlib
import errno
import http.client
import os
import socket
import stat
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from urllib.error import HTTPError, URLError

from airflow_provider_raybatch.contract.failures import FailureClass
from airflow_provider_raybatch.contract.text import plain_reason
from airflow_provider_raybatch.job.input.guarded_http import (
    Bounds,
    GuardedRequest,
    NotFollowedError,
    build_opener,
    promised,
    untrusted,
)
from airflow_provider_raybatch.job.media.allowed import (
    BucketObject,
    DiskFile,
    ImageAccess,
    WebFile,
    check_size,
    joined,
    shown_image,
    too_slow,
)
from airflow_provider_raybatch.job.row import ImageError
from airflow_provider_raybatch.storage.errors import (
    RETRY_LIMITS,
    StorageError,
    is_of_one_object,
    local_errors,
)
from airflow_provider_raybatch.storage.file import Entry
from airflow_provider_raybatch.storage.s3_folder import S3Folder

_OVERLOADED = frozenset({408, 429, 502, 503, 504})
_BLOCK = 256 * 1024


class _UnreachableError(Exception):
    """The host gives no answer, or says that it can't now."""


def read_url(place: WebFile, access: ImageAccess) -> bytes:
    """The content behind a URL; asked for again while the host is unreachable and there is time left.

    :raises ImageError: it is missing, refused, too large or too slow, or its host leads elsewhere.
    :raises StorageError: its host is unreachable, or its certificate is not trusted.
    """
    name, deadline = shown_image(place.url), time.monotonic() + access.timeout
    pause = RETRY_LIMITS.first_pause
    while True:
        try:
            return _read(place.url, access, deadline)
        except _UnreachableError as error:
            if time.monotonic() + pause > deadline:
                raise StorageError(
                    f"{name}: can't read it ({error}), tried for {access.timeout:g} s; check that the nodes "
                    "can reach its host: a retry of the task goes on with the rows that are finished."
                ) from error
        time.sleep(pause)
        pause = min(2 * pause, RETRY_LIMITS.longest_pause)


def _read(url: str, access: ImageAccess, deadline: float) -> bytes:
    name = shown_image(url)
    request = GuardedRequest(url, bounds=Bounds(access.hosts, deadline))
    try:
        with build_opener().open(request, timeout=access.timeout) as answer:
            length = promised(answer)
            check_size(length or 0, name, access)
            content = joined(_blocks(answer, access), name, access, deadline)
        if length not in {None, len(content)}:
            raise ImageError(f"{name} came only in part; check the server's Content-Length")
        return content
    except NotFollowedError as error:
        raise ImageError(
            f"{error.what}; images are read at public addresses of image_hosts alone: copy it into a bucket"
        ) from error
    except HTTPError as error:
        error.close()
        said = f"the server answered {error.code}"
        if error.code in _OVERLOADED:
            raise _UnreachableError(said) from error
        raise ImageError(f"{name} can't be read, {said}; check the URL") from error
    except URLError as error:  # before the request is sent; after that errors come as they are
        if why := untrusted(error):
            raise StorageError(f"{name}: can't read it, {why}", FailureClass.USER_ERROR) from error
        raise _UnreachableError(str(error.reason)) from error
    except socket.gaierror as error:
        raise _UnreachableError(error.strerror or "its name has no address") from error
    except TimeoutError as error:
        raise too_slow(name, access) from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        said = plain_reason(error)
        raise ImageError(f"{name} can't be read ({said}); check the URL and its server") from error


def _blocks(answer: http.client.HTTPResponse, access: ImageAccess) -> Iterator[bytes]:
    return iter(lambda: answer.read(min(_BLOCK, access.most_bytes + 1)), b"")


_DISK_BLOCK = 1024 * 1024
_FILE = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
"""O_NONBLOCK: the open of a pipe would wait for its writer."""
_OF_THE_FILE = frozenset({
    errno.ENOENT, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG,
    errno.ENXIO, errno.ENODEV, errno.EINVAL,
})  # fmt: skip
"""Errors after which the same call fails alike; any other is one of the disk."""


def read_file(place: DiskFile, access: ImageAccess) -> bytes:
    """The content of a file.

    :raises ImageError: it is not there, not a file, outside of its root, too large or too slow.
    :raises StorageError: the disk fails, or the node does not see the root.
    """
    name, deadline = shown_image(place.path), time.monotonic() + access.timeout
    path = os.path.realpath(place.path)
    roots = [root for root in map(os.path.realpath, place.roots) if path.startswith(f"{root.rstrip('/')}/")]
    if not roots:
        raise ImageError(
            f"{name} is a link out of {place.roots[0]}; add the folder that it leads to to image_roots"
        )
    with local_errors("read", Path(roots[0])):
        Path(roots[0]).stat()
    try:
        file = os.open(path, _FILE)
        try:
            if str(Path(f"/proc/self/fd/{file}").readlink()) not in {path, f"{path} (deleted)"}:
                raise ImageError(f"{name} can't be read, a link was made there meanwhile; check the path")
            found = os.fstat(file)
            if not stat.S_ISREG(found.st_mode):
                raise ImageError(f"{name} is not a file with content; name a file")
            check_size(found.st_size, name, access)
            blocks = iter(lambda: os.read(file, _DISK_BLOCK), b"")
            return joined(blocks, name, access, deadline)
        finally:
            os.close(file)
    except OSError as error:
        said = error.strerror or str(error)
        if error.errno in _OF_THE_FILE:
            raise ImageError(
                f"{name} can't be read ({said}); check the path, and that all nodes see the file"
            ) from error
        raise StorageError(f"{name}: can't read it ({said}).") from error


def read_object(place: BucketObject, access: ImageAccess) -> tuple[bytes, str]:
    """The content of an object and its version; empty where the store tells none.

    The time of `access` begins with the store's answer. A store that gives none is waited for as for any
    other file of a job.

    :raises ImageError: it is missing, refused, too large or too slow.
    :raises StorageError: the store does not answer, or refuses the credentials.
    """
    name = _name(place)

    def take(entry: Entry, blocks: Iterable[bytes]) -> tuple[bytes, str] | ImageError:
        try:  # returned, since what is raised here is taken for a fault of the store
            check_size(entry.size, name, access)
            return joined(blocks, name, access, time.monotonic() + access.timeout), _version(entry)
        except ImageError as error:
            return error

    with _errors_of_the_object():
        taken = _bucket(place, access).read_blocks(place.key, take)
    if taken is None:
        raise _missing(name)
    if isinstance(taken, ImageError):
        raise taken
    return taken


def object_version(place: BucketObject, access: ImageAccess) -> str:
    """The version of an object, without its content; empty where the store tells none.

    :raises ImageError: it is missing, refused or too large.
    :raises StorageError: as :func:`read_object` does.
    """
    name = _name(place)
    with _errors_of_the_object():
        entry = _bucket(place, access).head(place.key)
    if entry is None:
        raise _missing(name)
    check_size(entry.size, name, access)
    return _version(entry)


def _bucket(place: BucketObject, access: ImageAccess) -> S3Folder:
    return S3Folder(place.bucket, "", access.credentials)


def _name(place: BucketObject) -> str:
    return shown_image(f"s3://{place.bucket}/{place.key}")


def _version(entry: Entry) -> str:
    """A store may write one ETag in several forms."""
    etag = entry.version.removeprefix("W/").strip('"')
    return f"etag:{etag}:{entry.size}" if etag else ""


def _missing(name: str) -> ImageError:
    return ImageError(f"{name} can't be read, there is no such object; check its key")


@contextlib.contextmanager
def _errors_of_the_object() -> Iterator[None]:
    try:
        yield
    except StorageError as error:
        if not is_of_one_object(error):
            raise
        raise ImageError(str(error).rstrip(".")) from error
