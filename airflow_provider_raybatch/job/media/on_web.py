# SPDX-License-Identifier: Apache-2.0
"""Images behind ``https://``.

An outage of a host must not fail rows, and a row must not fail the job. So a host that can't be reached, or
is overloaded, is an error of the job. All else that a server does with one URL is an error of the row.
"""

from __future__ import annotations

import http.client
import socket
import time
from collections.abc import Iterator
from urllib.error import HTTPError, URLError

from airflow_provider_raybatch.contract.failures import FailureClass
from airflow_provider_raybatch.contract.text import plain_reason
from airflow_provider_raybatch.job.input.guarded_http import (
    Bounds,
    GuardedRequest,
    NotFollowedError,
    build_opener,
    untrusted,
)
from airflow_provider_raybatch.job.media.allowed import (
    ImageAccess,
    WebFile,
    check_size,
    joined,
    shown_image,
    too_slow,
)
from airflow_provider_raybatch.job.row import ImageError
from airflow_provider_raybatch.storage.errors import StorageError
from airflow_provider_raybatch.storage.retry import RETRY_LIMITS

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
            promised = _promised(answer)
            check_size(promised or 0, name, access)
            content = joined(_blocks(answer, access), name, access, deadline)
        if promised not in {None, len(content)}:
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


def _promised(answer: http.client.HTTPResponse) -> int | None:
    text = answer.headers.get("Content-Length", "")
    return int(text) if text.isdecimal() and len(text) < 20 else None


def _blocks(answer: http.client.HTTPResponse, access: ImageAccess) -> Iterator[bytes]:
    return iter(lambda: answer.read(min(_BLOCK, access.most_bytes + 1)), b"")
