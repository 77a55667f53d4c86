# SPDX-License-Identifier: Apache-2.0
"""Bounds the uploads and downloads that are under way at once, since each has megabytes in memory."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from fastapi import Response
from starlette.types import Receive, Scope, Send

from airflow_provider_raybatch.batch_api.server.objects import OpenAiError, come_back


class TransferSlots:
    """Slots for transfers of one direction at this process. Used in the event loop alone.

    A user's first transfer takes any free slot. Further ones begin only while more than half of the slots are
    free, so that a few users can't keep others out.

    :param what: plural, for refusals.
    :param at_once: transfers of all users, and `of_user` those of one.
    :param waiting: transfers of one user that may wait for a slot; their bodies are not read meanwhile.
    :param seconds: that each may wait.
    :param longest: seconds that each may take once it has begun.
    """

    def __init__(
        self,
        what: str,
        at_once: int,
        of_user: int,
        waiting: int = 32,
        seconds: float = 60.0,
        longest: float = 3600.0,
    ) -> None:
        self._what, self._at_once, self._of_user = what, at_once, of_user
        self._most_asked = of_user + waiting
        self._seconds, self._longest = seconds, longest
        self._free = at_once
        self._changed = asyncio.Event()
        self._begun: Counter[str] = Counter()
        """Transfers of each user that are under way."""
        self._asked: Counter[str] = Counter()
        """The same with those that wait."""

    @asynccontextmanager
    async def slot(self, owner: str) -> AsyncIterator[None]:
        """A slot for the time of the block.

        :raises OpenAiError: 429, the user has too many transfers; 503, the server has; 408, the block takes
            too long.
        """
        if self._asked[owner] >= self._most_asked:
            raise self._refused_user()
        self._asked[owner] += 1
        try:
            async with self._transfer(owner), asyncio.timeout(self._longest) as bound:
                yield
        except TimeoutError:
            if not bound.expired():
                raise
            raise OpenAiError(
                408,
                f"The server ends {self._what} after {self._longest / 60:g} minutes; split the file, or use "
                "a faster connection.",
            ) from None
        finally:
            self._asked -= Counter((owner,))  # without entries of 0

    @asynccontextmanager
    async def _transfer(self, owner: str) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(self._seconds):
                while not self._may_begin(self._begun[owner]):
                    await self._changed.wait()
        except TimeoutError:
            if self._begun[owner]:
                raise self._refused_user() from None
            raise come_back(503, f"The server has too many {self._what}; try again.") from None
        self._begun[owner] += 1
        self._free -= 1
        try:
            yield
        finally:
            self._begun -= Counter((owner,))
            self._free += 1
            self._changed.set()
            self._changed = asyncio.Event()

    def _may_begin(self, begun: int) -> bool:
        return begun < self._of_user and self._free > (self._at_once / 2 if begun else 0)

    def _refused_user(self) -> OpenAiError:
        text = f"The server takes no more {self._what} of yours just now; wait for one of them to end."
        return come_back(429, text)


class InSlot(Response):
    """An answer that is begun once it has its slot, and keeps that until it is sent.

    :param make: begins the answer. Its exceptions are answered as those of a route.
    """

    def __init__(
        self, slot: AbstractAsyncContextManager[None], make: Callable[[], Awaitable[Response]]
    ) -> None:
        super().__init__()
        self._slot, self._make = slot, make

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Begin and send the answer."""
        async with self._slot:
            answer = await self._make()
            await answer(scope, receive, send)
