# SPDX-License-Identifier: Apache-2.0
"""Bounds the uploads and downloads that are under way at once, since each has megabytes in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager

from fastapi import Response
from starlette.types import Receive, Scope, Send

from airflow_provider_raybatch.plugins.batch_api.errors import OpenAiError
from airflow_provider_raybatch.plugins.batch_api.limits import too_many

_AGAIN = 5
"""Seconds after which a refused client may come back."""


class _User:
    """Transfers of one user, under way or waiting."""

    def __init__(self, at_once: int) -> None:
        self.begun = asyncio.Semaphore(at_once)
        self.asked = 0


class TransferSlots:
    """Slots for transfers of one direction at this process. Used in the event loop alone.

    :param what: plural, for refusals.
    :param at_once: transfers of all users, and `of_user` those of one, so that no user takes all slots.
    :param waiting: transfers of one user that may wait for a slot; their bodies are not read meanwhile.
    :param seconds: that each may wait.
    """

    def __init__(
        self, what: str, at_once: int, of_user: int, waiting: int = 32, seconds: float = 60.0
    ) -> None:
        self._what, self._of_user, self._seconds = what, of_user, seconds
        self._most_asked = of_user + waiting
        self._all = asyncio.Semaphore(at_once)
        self._users: dict[str, _User] = {}

    @asynccontextmanager
    async def slot(self, owner: str) -> AsyncIterator[None]:
        """A slot for the time of the block.

        :raises OpenAiError: 429, the user has too many transfers; 503, the server has.
        """
        user = self._users.setdefault(owner, _User(self._of_user))
        if user.asked >= self._most_asked:
            raise self._refused_user()
        user.asked += 1
        async with AsyncExitStack() as held:
            held.callback(self._ended, owner, user)
            try:
                async with asyncio.timeout(self._seconds):
                    await held.enter_async_context(user.begun)
                    await held.enter_async_context(self._all)
            except TimeoutError:
                if user.begun.locked():
                    raise self._refused_user() from None
                raise OpenAiError(
                    503, f"The server has too many {self._what}; try again.", headers={"Retry-After": "5"}
                ) from None
            yield

    def _refused_user(self) -> OpenAiError:
        text = f"You have too many {self._what} at once, and {self._of_user} are served; wait for some."
        return too_many(text, _AGAIN)

    def _ended(self, owner: str, user: _User) -> None:
        user.asked -= 1
        if not user.asked:
            self._users.pop(owner, None)


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
