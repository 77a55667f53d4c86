# SPDX-License-Identifier: Apache-2.0
"""The content of an image, and its version: what tells it from any other image.

- A copy of the content in a row, a file and a URL: the digest of the content.
- An object in S3: its ETag and size, which a HEAD tells. So no key of a request needs the content, and a copy
  of the object under another name is the same image.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator
from dataclasses import replace
from urllib.parse import urlsplit

from airflow_provider_raybatch.job.media.allowed import (
    BucketObject,
    DiskFile,
    ImageAccess,
    Reference,
    check_size,
)
from airflow_provider_raybatch.job.media.in_bucket import object_version, read_object
from airflow_provider_raybatch.job.media.on_disk import read_file
from airflow_provider_raybatch.job.media.on_web import read_url
from airflow_provider_raybatch.job.row import Image
from airflow_provider_raybatch.storage.errors import StorageError


def fetch(image: Image, access: ImageAccess) -> Image:
    """The image with its content and version.

    :raises ImageError: it can't be read, is not allowed or too large.
    :raises StorageError: the store, the disk or the host fails.
    """
    if not image.uri:
        return version_of(image, access)
    content, version = _read(access.located(image.uri), access)
    version = version or content_version(content)
    return replace(image, content=content, version=version)


def version_of(image: Image, access: ImageAccess) -> Image:
    """The image with its version; the content of a reference is dropped again.

    :raises ImageError: as :func:`fetch` does.
    :raises StorageError: as :func:`fetch` does.
    """
    if not image.uri:
        check_size(len(image.content), "the image", access)
        return image if image.version else replace(image, version=content_version(image.content))
    place, version = access.located(image.uri), ""
    if isinstance(place, BucketObject):
        with _public_errors(place):
            version = object_version(place, access)
    return replace(image, version=version) if version else replace(fetch(image, access), content=b"")


def content_version(content: bytes) -> str:
    """The version of an image whose content is known."""
    return f"blake2b:{hashlib.blake2b(content, digest_size=16).hexdigest()}"


def _read(place: Reference, access: ImageAccess) -> tuple[bytes, str]:
    with _public_errors(place):
        if isinstance(place, BucketObject):
            return read_object(place, access)
        return (read_file(place, access) if isinstance(place, DiskFile) else read_url(place, access)), ""


@contextlib.contextmanager
def _public_errors(place: Reference) -> Iterator[None]:
    """Name the field in errors of a store, and give them a sentence without the reference, the row's own."""
    try:
        yield
    except StorageError as error:
        public = (
            f"images: an image {_where(place)} can't be read; check that the cluster's nodes can read there. "
            "The address and the reason are left out with report_samples=0."
        )
        raise StorageError(f"images: {error}", error.failure_class, public=public) from error


def _where(place: Reference) -> str:
    """Where a reference leads, as far as the job's arguments say it, too."""
    if isinstance(place, BucketObject):
        return f"in s3://{place.bucket}"
    if isinstance(place, DiskFile):
        return f"below {place.roots[0]}"
    return f"on {urlsplit(place.url).hostname}"
