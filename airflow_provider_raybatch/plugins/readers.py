# SPDX-License-Identifier: Apache-2.0
"""Threads of their own for reading reports."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

from airflow_provider_raybatch.plugins.refusal import NotShownError
from airflow_provider_raybatch.plugins.threads import CrowdedError, OwnThreads

P = ParamSpec("P")
T = TypeVar("T")


class Readers:
    """A few threads, and a short queue before them.

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
