# SPDX-License-Identifier: Apache-2.0
"""Images in S3."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator

from airflow_provider_raybatch.job.media.allowed import (
    BucketObject,
    ImageAccess,
    check_size,
    joined,
    shown_image,
)
from airflow_provider_raybatch.job.row import ImageError
from airflow_provider_raybatch.storage.entry import Entry
from airflow_provider_raybatch.storage.errors import StorageError, is_of_one_object
from airflow_provider_raybatch.storage.s3_folder import S3Folder


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
