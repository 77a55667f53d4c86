# SPDX-License-Identifier: Apache-2.0
"""How often a process may ask one head about the jobs that it follows there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

_REQUESTS = 80.0
"""Requests a second of all followers together. A busy head answers 100, and others ask it, too."""
_LOGS = 0.1
"""Share of them that logs get at least; polls show how jobs end."""
_AT_ONCE = 32
"""Polls on their way: a head that answers slowly is asked no faster than it answers."""


class Pace:
    """Spreads the polls of followers that share a client.

    :ivar followers: jobs that are followed.
    """

    def __init__(self) -> None:
        self.followers = 0
        self._turns = asyncio.Semaphore(_AT_ONCE)

    @asynccontextmanager
    async def turn(self, longest: float) -> AsyncIterator[bool]:
        """Wait for a turn, at most `longest` seconds; yields whether the head keeps others waiting, too."""
        is_busy, has_turn = self._turns.locked(), False
        with suppress(TimeoutError):  # the head may hang, and the job has a deadline and a lease
            async with asyncio.timeout(longest):
                has_turn = await self._turns.acquire()
        try:
            yield is_busy
        finally:
            if has_turn:
                self._turns.release()

    def pause(self, shortest: float, longest: float) -> float:
        """Seconds between two polls of a job."""
        return max(shortest, min(longest, self.followers / (_REQUESTS * (1 - _LOGS))))

    def log_pause(self, pause: float) -> float:
        """Seconds between two reads of a job's log, by what polls each `pause` seconds leave."""
        return self.followers / max(_REQUESTS * _LOGS, _REQUESTS - self.followers / pause)
