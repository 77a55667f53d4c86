# SPDX-License-Identifier: Apache-2.0
"""What the web apps share: headers of each answer, and threads for blocking calls.

Addresses of answers open outside of a frame, too. Slow storage takes no thread of the API server.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from typing import Any, ParamSpec, TypeVar

from starlette.datastructures import MutableHeaders
from starlette.types import Message, Send

from airflow_provider_raybatch.plugins.reading import NotShownError

P = ParamSpec("P")
T = TypeVar("T")

HEADERS = {
    "Content-Security-Policy": "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "private, no-store",
    "Referrer-Policy": "no-referrer",
}


def safely(send: Send) -> Send:
    """`send` of a request, which sets :data:`HEADERS` on its answer."""

    async def with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            MutableHeaders(scope=message).update(HEADERS)
        await send(message)

    return with_headers


class CrowdedError(Exception):
    """Too many calls wait for a thread."""


class OwnThreads:
    """A few threads, and a short queue before them.

    :param name: of the threads.
    :param threads: that work at once.
    :param waiting: calls that may wait for one.
    :param seconds: after which a caller no longer waits.
    """

    def __init__(self, name: str, threads: int, waiting: int, seconds: float) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._most = threads + waiting
        self._under_way = 0
        self.seconds = seconds

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """What `function` returns, called in a thread.

        :raises CrowdedError: the queue is full.
        :raises TimeoutError: it takes too long. Once begun it goes on, and keeps its thread; else it never
            begins.
        """
        if self._under_way >= self._most:
            raise CrowdedError
        self._under_way += 1
        deadline = time.monotonic() + self.seconds

        def begin() -> T:
            if time.monotonic() >= deadline:
                raise TimeoutError
            return function(*args, **kwargs)

        call = partial(copy_context().run, begin)
        future = asyncio.get_running_loop().run_in_executor(self._pool, call)
        future.add_done_callback(self._done)
        return await asyncio.wait_for(asyncio.shield(future), self.seconds)

    def _done(self, future: asyncio.Future[Any]) -> None:
        self._under_way -= 1
        if not future.cancelled():
            future.exception()  # of a request that was answered before


class Readers:
    """Those that read reports.

    :param threads: that read at once.
    :param waiting: requests that may wait for one.
    :param seconds: after which a request is answered without what it asked for.
    """

    def __init__(self, threads: int = 4, waiting: int = 16, seconds: float = 40) -> None:
        self._threads = OwnThreads("raybatch-reports", threads, waiting, seconds)

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """What `function` returns, called in a thread.

        :raises NotShownError: too many others wait, or it takes too long. It goes on, and keeps its thread.
        """
        try:
            return await self._threads.run(function, *args, **kwargs)
        except CrowdedError:
            raise NotShownError("Many reports are being read just now; try again in a minute.", 503) from None
        except TimeoutError:
            raise NotShownError(
                f"The destination did not answer in {self._threads.seconds:g} s; try again, or look there "
                "directly.",
                504,
            ) from None
