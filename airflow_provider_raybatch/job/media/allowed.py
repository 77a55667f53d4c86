# SPDX-License-Identifier: Apache-2.0
"""What a row may make the cluster read, and how much of it.

Rows come from anywhere. The cluster's credentials, disks and network are the user's. So a reference is read
only below a folder, or from a host, that the user named; everything else is refused before any request.
"""

from __future__ import annotations

import re
import string
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeAlias
from urllib.parse import quote, unquote, urlsplit

from airflow_provider_raybatch.contract.arguments.images import ROOT_SCHEMES, ImageLimits
from airflow_provider_raybatch.contract.base import check_characters
from airflow_provider_raybatch.contract.location import plain, split_s3
from airflow_provider_raybatch.contract.secrets import AwsCredentials
from airflow_provider_raybatch.contract.text import count_of, cut_to, shown_uri
from airflow_provider_raybatch.job.input.listing import Listing
from airflow_provider_raybatch.job.row import ImageError

_LONGEST = 8192
"""Characters of a reference; presigned URLs have up to 2,000."""
_LONGEST_KEY = 1024
"""Bytes of a key in S3, which refuses the request for a longer one."""
_LONGEST_SHOWN = 300
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
_BUCKET = re.compile(r"[A-Za-z0-9._-]+")


@dataclass(frozen=True)
class DiskFile:
    """A file that a reference names.

    :param path: absolute, without ``.`` and ``..``.
    :param roots: those above it, as they are written: a link below them may still lead out.
    """

    path: str
    roots: tuple[str, ...]


@dataclass(frozen=True)
class BucketObject:
    """An object that a reference names; it lies below a root."""

    bucket: str
    key: str


@dataclass(frozen=True)
class WebFile:
    """What a reference to ``https://`` names; its host is allowed, its address is not known yet."""

    url: str


Reference: TypeAlias = "DiskFile | BucketObject | WebFile"


@dataclass(frozen=True)
class ImageAccess:
    """What references to images may name, and how much of an image is taken. Picklable.

    :param roots: locations of folders, each in the spelling of
        :func:`~airflow_provider_raybatch.contract.location.plain`.
    :param hosts: in lower case.
    :param most_bytes: of an image as it is stored.
    :param most_pixels: of an image.
    :param timeout: seconds for fetching one image.
    :param credentials: for S3; ``None`` for the cluster's own identity.
    """

    roots: tuple[str, ...]
    hosts: frozenset[str]
    most_bytes: int
    most_pixels: int
    timeout: float
    credentials: AwsCredentials | None = field(default=None, repr=False)

    def located(self, uri: str) -> Reference:
        """What a reference names, by its text, without reading anything.

        :raises ImageError: it is malformed, or not below a root or on a host.
        """
        _check_text(uri)
        if uri.startswith("https://"):
            return self._on_the_web(uri)
        if uri.startswith("s3://"):
            return self._in_a_bucket(uri)
        if _SCHEME.match(uri) and not uri.startswith("file:///"):
            raise _refused(
                uri, "is neither https://, s3:// nor a path; copy the image where images are read from"
            )
        return self._on_a_disk(uri)

    def _on_the_web(self, uri: str) -> WebFile:
        try:
            parts = urlsplit(uri)
            port = parts.port
        except ValueError as error:  # whose text may have the URL's login
            raise _refused(uri, "is not a URL that can be read; correct it") from error
        host = parts.hostname or ""
        if "@" in parts.netloc or port not in {None, 443}:
            raise _refused(uri, "has a login or a port; use a URL that needs none")
        if not parts.netloc.isascii() or host not in self.hosts:
            raise _refused(uri, "is on a host that is not allowed; add the host to image_hosts")
        path, query = (quote(text, safe=string.punctuation) for text in (parts.path, parts.query))
        return WebFile(f"https://{host}{path}{'?' if query else ''}{query}")

    def _in_a_bucket(self, uri: str) -> BucketObject:
        bucket, key = split_s3(uri) or ("", "")
        names = key.split("/")
        if not _BUCKET.fullmatch(bucket) or "" in names:
            raise _refused(uri, "is not the location of an object; write it as s3://bucket/key")
        _check_names(uri, names)
        if len(key.encode()) > _LONGEST_KEY:
            raise _refused(
                uri, f"has a key of more than {_LONGEST_KEY} bytes, which S3 can't hold; correct it"
            )
        self._roots_above(uri, f"s3://{bucket}", names)
        return BucketObject(bucket, key)

    def _on_a_disk(self, uri: str) -> DiskFile:
        path = uri
        if uri.startswith("file:///"):
            if "#" in uri:
                raise _refused(uri, "has a '#', at which a URL ends its path; write %23 for a name with it")
            path = unquote(uri.removeprefix("file://"))
            _check_text(path)
        if not path.startswith("/"):
            raise _refused(uri, "is relative; write the absolute path")
        names = [name for name in path.split("/") if name]
        _check_names(uri, names)
        if not names or path.endswith("/"):
            raise _refused(uri, "is the path of a folder; name a file")
        return DiskFile(f"/{'/'.join(names)}", self._roots_above(uri, "", names))

    def _roots_above(self, uri: str, start: str, names: Sequence[str]) -> tuple[str, ...]:
        found = tuple(root for root in _above(start, names) if root in self._roots)
        if not found:
            first = f" ({', '.join(self.roots[:3])}{', ...' if len(self.roots) > 3 else ''})"
            raise _refused(
                uri,
                f"is not below image_roots{first if self.roots else ', which are none here'}; move the image "
                "there, or add its folder",
            )
        return found

    @cached_property
    def _roots(self) -> frozenset[str]:
        return frozenset(self.roots)


def image_access(arguments: ImageLimits, listing: Listing, credentials: AwsCredentials | None) -> ImageAccess:
    """What the images of a job may be.

    :param listing: whose files' folders are the roots by default. Files behind ``https://`` and on the
        Hugging Face hub have none, and so has a file that lies in no folder of its disk.
    :param credentials: those of the source.
    """
    roots = arguments.image_roots
    if roots is None:
        roots = [root for file in listing.files if (root := _folder_of(file.uri))]
    return ImageAccess(
        roots=tuple(dict.fromkeys(map(plain, roots))),
        hosts=frozenset(arguments.image_hosts),
        most_bytes=arguments.max_image_bytes,
        most_pixels=arguments.max_image_pixels,
        timeout=arguments.image_timeout,
        credentials=credentials,
    )


def shown_image(uri: str) -> str:
    """A reference as a reason may show it: without logins and signatures, and cut."""
    return cut_to(shown_uri(uri), _LONGEST_SHOWN)


def _folder_of(uri: str) -> str:
    """Empty where it has none that references may lie in."""
    match = _SCHEME.match(uri)
    if match and match[1] not in ROOT_SCHEMES:
        return ""
    folder = uri.rpartition("/")[0]
    return "" if plain(folder) == "/" else folder


def _above(start: str, names: Sequence[str]) -> Iterator[str]:
    """The folders above a file, outermost first; a disk's top is ``/``, and a bucket's ``s3://bucket``."""
    for depth in range(len(names)):
        yield "/".join([start, *names[:depth]]) or "/"


def _check_text(uri: str) -> None:
    if len(uri) > _LONGEST:
        raise _refused(uri, f"has {count_of(len(uri), 'character')}, more than {_LONGEST:,}; shorten it")
    try:
        check_characters(uri)
    except ValueError as error:
        raise ImageError(cut_to(str(error), _LONGEST_SHOWN)) from error


def _check_names(uri: str, names: Sequence[str]) -> None:
    """Refuse ``..`` also as ``%2e%2e``: whatever decodes it later would leave the folder."""
    for name in names:
        if not {".", ".."}.isdisjoint(unquote(name).split("/")):
            shown = cut_to(name, _LONGEST_SHOWN)
            raise _refused(uri, f"has the name {shown!r} between its slashes; write the path without it")


def _refused(uri: str, why: str) -> ImageError:
    return ImageError(f"{shown_image(uri)} {why}")


def check_size(size: int, name: str, access: ImageAccess) -> None:
    """:raises ImageError: `size` bytes are too many; `name` begins its sentence."""
    if size > access.most_bytes:
        raise ImageError(
            f"{name} has more than the {count_of(access.most_bytes, 'byte')} of max_image_bytes; make it "
            "smaller, or raise max_image_bytes"
        )


def joined(blocks: Iterable[bytes], name: str, access: ImageAccess, deadline: float) -> bytes:
    """The content of an image, taken block by block.

    :param name: begins the sentences of errors.
    :param deadline: by `time.monotonic`.
    :raises ImageError: it is too large, or not complete at the deadline.
    """
    content = bytearray()
    for block in blocks:
        content += block
        check_size(len(content), name, access)
        if time.monotonic() > deadline:
            raise too_slow(name, access)
    return bytes(content)


def too_slow(name: str, access: ImageAccess) -> ImageError:
    """The error of an image that is not complete in time."""
    return ImageError(
        f"{name} did not arrive within the {access.timeout:g} s of image_timeout; check where it lies, or "
        "raise image_timeout"
    )
