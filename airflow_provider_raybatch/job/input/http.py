# SPDX-License-Identifier: Apache-2.0
"""Files behind ``https://``: a plain GET of the whole file, since few servers serve ranges."""

from __future__ import annotations

import http.client
import shutil
import urllib.request
from typing import IO

from airflow_provider_raybatch.contract.failures import FailureClass
from airflow_provider_raybatch.storage.errors import FULL, StorageError

_TIMEOUT = 60.0
_AGENT = {"User-Agent": "airflow-provider-raybatch"}


def is_url(path: str) -> bool:
    """Whether `path` is one that this module reads."""
    return path.startswith(("https://", "http://"))


def size_and_version(url: str) -> tuple[int, str]:
    """Size in bytes (0 where the server doesn't tell) and version of a file.

    Asked with GET and hung up on, since a presigned URL is signed for GET alone.

    :raises StorageError: the server refuses, or isn't there.
    """
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=_AGENT), timeout=_TIMEOUT) as answer:
            version = answer.headers.get("ETag") or answer.headers.get("Last-Modified") or ""
            return int(answer.headers.get("Content-Length") or 0), version
    except (http.client.HTTPException, OSError) as error:
        raise _error(url, error) from error


def fetch(url: str, into: IO[bytes]) -> None:
    """Copy the file's content.

    :raises StorageError: it can't be fetched.
    :raises OSError: `into` is full.
    """
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=_AGENT), timeout=_TIMEOUT) as answer:
            before = into.tell()
            shutil.copyfileobj(answer, into)
            promised = answer.headers.get("Content-Length")
            # Python's client takes a connection that ends early for the end of the file.
            if promised is not None and into.tell() - before != int(promised):
                raise OSError(f"only {into.tell() - before} of {promised} bytes came")
    except (http.client.HTTPException, OSError) as error:
        if isinstance(error, OSError) and error.errno in FULL:
            raise  # of the disk that it is copied to
        raise _error(url, error) from error


def _error(url: str, error: Exception) -> StorageError:
    code = getattr(error, "code", None)
    reason = f"the server answered {code}" if code else str(getattr(error, "reason", error))
    lasting = code is not None and 400 <= code < 500 and code not in (408, 429)
    named = url.partition("?")[0]  # the query may hold a signature
    return StorageError(
        f"source: {named} can't be read, {reason}.",
        FailureClass.USER_ERROR if lasting else FailureClass.STORAGE,
    )
