# SPDX-License-Identifier: Apache-2.0
"""Files behind ``https://``, by a plain GET of the whole file, since few servers serve ranges.

A file's version is its ETag, else the time of its last change.
"""

from __future__ import annotations

import contextlib
import email.utils
import http.client
import string
from collections.abc import Iterator
from datetime import timedelta
from typing import IO
from urllib.parse import quote, urlsplit

from airflow_provider_raybatch.contract.failures import FailureClass
from airflow_provider_raybatch.contract.text import count_of, shown_uri
from airflow_provider_raybatch.job.input.guarded_http import GuardedRequest, build_opener, promised, untrusted
from airflow_provider_raybatch.storage.errors import FULL, StorageError

MOST_BYTES = 64 * 2**30
"""Bytes of a file, as it comes over the network."""
_TIMEOUT = 60.0
_STRONG = timedelta(seconds=60)
"""As of RFC 9110, section 8.8.2.2: a file that changed later than this before the answer may change again
within the same second."""
_BLOCK = 1024 * 1024


def is_url(path: str) -> bool:
    """Whether `path` is one that this module reads."""
    return path.startswith(("https://", "http://"))


def size_and_version(url: str) -> tuple[int, str]:
    """Size in bytes (0 for unknown) and version of a file.

    Asked by a GET that is hung up on, since a presigned URL is signed for GET alone.

    :raises StorageError: the server refuses, isn't there, or tells no version; or the file is too large.
    """
    with _errors(url), _opened(url) as answer:
        length, version = _promised(url, answer), _version(answer)
        is_young = "Last-Modified" in answer.headers
    if not version and is_young:
        raise StorageError(
            f"source: {shown_uri(url)} has no ETag, and its Last-Modified is not a minute old, so it may "
            "still change unseen; a retry in a minute reads it."
        )
    if not version:
        raise StorageError(
            f"source: {shown_uri(url)} has no version, neither an ETag nor a Last-Modified, so it may change "
            "while the job reads it; copy it into a bucket, or onto a disk that all nodes see.",
            FailureClass.USER_ERROR,
        )
    return length or 0, version


def fetch(url: str, size: int, version: str, into: IO[bytes]) -> bool:
    """Copy the file's content.

    :param size: as :func:`size_and_version` gave it; so for `version`.
    :returns: `False` if it is another version.
    :raises StorageError: it can't be fetched.
    :raises OSError: `into` is full.
    """
    with _errors(url), _opened(url) as answer:
        _promised(url, answer)
        copied = _copy(url, answer, into)
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
    if tag := answer.headers.get("ETag"):
        return tag
    modified = answer.headers.get("Last-Modified", "")
    with contextlib.suppress(TypeError, ValueError):  # no dates
        told = email.utils.parsedate_to_datetime(answer.headers.get("Date", ""))
        if told - email.utils.parsedate_to_datetime(modified) >= _STRONG:
            return modified
    return ""


def _promised(url: str, answer: http.client.HTTPResponse) -> int | None:
    size = promised(answer)
    _check_size(url, size or 0)
    return size


def _copy(url: str, answer: http.client.HTTPResponse, into: IO[bytes]) -> int:
    """Copy the content, and return its bytes."""
    copied = 0
    while block := answer.read(_BLOCK):
        copied += len(block)
        _check_size(url, copied)
        into.write(block)
    # Python's client takes a lost connection for the end of the file.
    length = promised(answer)
    if length is not None and copied != length:
        raise OSError(f"only {copied:,} of {count_of(length, 'byte')} came")
    return copied


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
