# SPDX-License-Identifier: Apache-2.0
"""Many at a time, or one alone: so that the death of an engine can be laid to the rows it had."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator


class Gate:
    """Lets any number of ordinary users in together, and a user who asks for it in alone.

    Who wants to be alone goes first: the others wait from then on.
    """

    def __init__(self) -> None:
        self._changed = asyncio.Condition()
        self._inside = 0
        self._waiting_alone = 0
        self._alone = False

    @contextlib.asynccontextmanager
    async def together(self) -> AsyncIterator[None]:
        """Be inside with others."""
        async with self._changed:
            await self._changed.wait_for(lambda: not self._alone and not self._waiting_alone)
            self._inside += 1
        try:
            yield
        finally:
            async with self._changed:
                self._inside -= 1
                self._changed.notify_all()

    @contextlib.asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        """Be inside without anybody else."""
        async with self._changed:
            self._waiting_alone += 1
            try:
                await self._changed.wait_for(lambda: not self._alone and not self._inside)
            finally:
                self._waiting_alone -= 1
                self._changed.notify_all()
            self._alone = True
        try:
            yield
        finally:
            async with self._changed:
                self._alone = False
                self._changed.notify_all()
