# SPDX-License-Identifier: Apache-2.0
"""Files behind ``https://``, by a plain GET of the whole file, since few servers serve ranges.

A file's version is its ETag. A file without one is copied, and known by its digest.
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import http.client
import string
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO
from urllib.parse import quote, urlsplit

from airflow_provider_raybatch.contract.failures import FailureClass
from airflow_provider_raybatch.contract.layout import SOURCES, SourceCopy, source_copy
from airflow_provider_raybatch.contract.shown_uri import shown_uri
from airflow_provider_raybatch.contract.text import count_of
from airflow_provider_raybatch.job.input.guarded_http import GuardedRequest, build_opener, promised, untrusted
from airflow_provider_raybatch.storage.errors import FULL, StorageError, error_prefix
from airflow_provider_raybatch.storage.folder import Folder

MOST_BYTES = 64 * 2**30
"""Bytes of a file, as it comes over the network."""
_TIMEOUT = 60.0
_BLOCK = 1024 * 1024


def is_url(path: str) -> bool:
    """Whether `path` is one that this module reads."""
    return path.startswith(("https://", "http://"))


def size_and_version(url: str, into: IO[bytes]) -> tuple[int, str, str]:
    """Size in bytes (0 for unknown), version and digest of a file.

    Asked by a GET that is hung up on, since a presigned URL is signed for GET alone. Without a version, this
    answer is copied: the next one may have other content.

    :param into: gets the content of a file without a version.
    :returns: either version or digest (32 hex digits) is empty.
    :raises StorageError: the server refuses, isn't there, or the file is too large.
    :raises OSError: `into` is full.
    """
    with _errors(url), _opened(url) as answer:
        length, version = _promised(url, answer), _version(answer)
        if version:
            return length or 0, version, ""
        size, digest = _copy(url, answer, into)
        return size, "", digest


def fetch(url: str, size: int, version: str, into: IO[bytes]) -> bool:
    """Copy the file's content.

    :param size: as :func:`size_and_version` gave it; so for `version`.
    :returns: `False` if it is another version.
    :raises StorageError: it can't be fetched.
    :raises OSError: `into` is full.
    """
    with _errors(url), _opened(url) as answer:
        _promised(url, answer)
        copied, _ = _copy(url, answer, into)
        return _version(answer) == version and size in (0, copied)


@contextlib.contextmanager
def _errors(url: str) -> Iterator[None]:
    try:
        yield
    except (http.client.HTTPException, OSError) as error:
        if isinstance(error, OSError) and error.errno in FULL:
            raise  # of the disk that it is copied to
        raise _error(url, error) from error
    except ValueError as error:
        raise StorageError(
            f"source: {shown_uri(url)} is not a URL that can be read ({error}); check it.",
            FailureClass.USER_ERROR,
        ) from error


def _opened(url: str) -> http.client.HTTPResponse:
    parts = urlsplit(url)
    path, query = (quote(text, safe=string.punctuation) for text in (parts.path, parts.query))
    request = GuardedRequest(parts._replace(path=path, query=query, fragment="").geturl())
    answer: http.client.HTTPResponse = build_opener().open(request, timeout=_TIMEOUT)
    return answer


def _version(answer: http.client.HTTPResponse) -> str:
    """Empty if the server's headers identify no version."""
    return answer.headers.get("ETag") or ""


def _promised(url: str, answer: http.client.HTTPResponse) -> int | None:
    size = promised(answer)
    _check_size(url, size or 0)
    return size


def _copy(url: str, answer: http.client.HTTPResponse, into: IO[bytes]) -> tuple[int, str]:
    """Copy the content, and return its bytes and digest."""
    copied, digest = 0, hashlib.sha256()
    while block := answer.read(_BLOCK):
        copied += len(block)
        _check_size(url, copied)
        digest.update(block)
        into.write(block)
    # Python's client takes a lost connection for the end of the file.
    length = promised(answer)
    if length is not None and copied != length:
        raise OSError(f"only {copied:,} of {count_of(length, 'byte')} came")
    return copied, digest.hexdigest()[:32]


def _check_size(url: str, size: int) -> None:
    if size > MOST_BYTES:
        raise StorageError(
            f"source: {shown_uri(url)} has more than {MOST_BYTES // 2**30} GiB, the most that is read from a "
            "URL; copy it into a bucket, or split it.",
            FailureClass.USER_ERROR,
        )


def _error(url: str, error: Exception) -> StorageError:
    code = getattr(error, "code", None)
    if why := untrusted(error):
        return StorageError(f"source: {shown_uri(url)} can't be read, {why}", FailureClass.USER_ERROR)
    reason = f"the server answered {code}" if code else str(getattr(error, "reason", error))
    lasting = code is not None and 400 <= code < 500 and code not in (408, 429)
    return StorageError(
        f"source: {shown_uri(url)} can't be read, {reason}.",
        FailureClass.USER_ERROR if lasting else FailureClass.STORAGE,
    )


@dataclass(frozen=True)
class Copies:
    """Those of one run.

    :param folder: the destination.
    :param run: as :func:`~airflow_provider_raybatch.contract.layout.run_name` gives it.
    """

    folder: Folder
    run: str

    def keep(self, content: IO[bytes], size: int, digest: str) -> str:
        """Keep a copy of a source, unless an earlier attempt of the run has.

        :param digest: of the content, 32 hex digits.
        :returns: the copy's URI.
        :raises StorageError: it can't be written.
        """
        with error_prefix("destination"):
            for entry in self.folder.list(SOURCES):
                there = source_copy(entry.path)
                if there and (there.run, there.digest, entry.size) == (self.run, digest, size):
                    return f"{self.folder.uri}/{there.path}"
            began = f"{datetime.datetime.now(datetime.timezone.utc):%Y%m%dT%H%M%S}"
            path = SourceCopy(began, self.run, digest).path
            self.folder.write(path, content)
            return f"{self.folder.uri}/{path}"


def scratch_error(what: str, error: OSError) -> StorageError:
    """The error of a scratch file that can't be written; `what` begins its sentence."""
    return StorageError(
        f"source: {what} into {tempfile.gettempdir()} ({error.strerror or error}); make room there, or set "
        "TMPDIR to another folder on the cluster's nodes."
    )
