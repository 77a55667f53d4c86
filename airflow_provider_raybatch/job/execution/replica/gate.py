# SPDX-License-Identifier: Apache-2.0
"""Which groups of rows share the engine, so that a crash can be attributed to the rows in it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Hashable


class Gate:
    """Admits one group at a time.

    Normal chunks yield to suspected ones, which would otherwise starve.
    """

    def __init__(self) -> None:
        self._changed = asyncio.Condition()
        self._group: Hashable = None
        self._inside = 0
        self._waiting = 0

    @contextlib.asynccontextmanager
    async def group(self, name: Hashable) -> AsyncIterator[None]:
        """Enter together with groups of the same name only; ``None`` is the name of normal chunks."""
        async with self._changed:
            self._waiting += name is not None
            try:
                await self._changed.wait_for(lambda: self._may_enter(name))
            finally:
                self._waiting -= name is not None
                self._changed.notify_all()
            self._group = name
            self._inside += 1
        try:
            yield
        finally:
            async with self._changed:
                self._inside -= 1
                self._changed.notify_all()

    def _may_enter(self, name: Hashable) -> bool:
        if name is None and self._waiting:
            return False
        return not self._inside or self._group == name
