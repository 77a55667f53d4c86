# SPDX-License-Identifier: Apache-2.0
"""Threads of their own for reading reports, so that slow storage takes none of the API server's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from typing import Any, ParamSpec, TypeVar

from airflow_provider_raybatch.plugins.refusal import NotShownError

P = ParamSpec("P")
T = TypeVar("T")


class Readers:
    """A few threads, and a short queue before them.

    :param threads: that read at once.
    :param waiting: requests that may wait for one.
    :param seconds: after which a request is answered without what it asked for.
    """

    def __init__(self, threads: int = 4, waiting: int = 16, seconds: float = 40) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="raybatch-reports")
        self._most = threads + waiting
        self._seconds = seconds
        self._under_way = 0

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """What `function` returns, called in a thread.

        :raises NotShownError: too many others wait, or it takes too long. It goes on, and keeps its thread.
        """
        if self._under_way >= self._most:
            raise NotShownError("Many reports are being read just now; try again in a minute.", 503)
        self._under_way += 1
        call = partial(copy_context().run, partial(function, *args, **kwargs))
        future = asyncio.get_running_loop().run_in_executor(self._pool, call)
        future.add_done_callback(self._done)
        try:
            return await asyncio.wait_for(asyncio.shield(future), self._seconds)
        except TimeoutError:
            raise NotShownError(
                f"The destination did not answer in {self._seconds:g} s; try again, or look there directly.",
                504,
            ) from None

    def _done(self, future: asyncio.Future[Any]) -> None:
        self._under_way -= 1
        if not future.cancelled():
            future.exception()  # of a request that was answered before
