# SPDX-License-Identifier: Apache-2.0
"""Lease of a warm engine: holder, expiry and transitions. The caller passes the time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

SILENT = 15.0
"""Seconds without a call after which the holder counts as dead. It calls every 2 s."""
UNUSED = 30.0
"""Seconds that a new actor waits for its first holder. The pool that made it checks every 2 s."""
LONGEST_START = 600.0
"""Seconds that vLLM's import, or the end of another engine, may take while the holder waits for it."""
LONGEST_RETURN = 60.0
"""Seconds for an engine to cancel what its last holder left."""
SHORTEST_REST = 5.0
"""Idle seconds before it ends for others: a job that waits for an equal engine has taken it by then."""


@dataclass(frozen=True)
class Holder:
    """The replica that has the engine.

    :param actor: id of its actor, which Ray starts again after a death.
    :param process: its process.
    """

    actor: str
    process: str


class GivenAwayError(Exception):
    """The caller is not the holder of this engine, or is no longer."""


class EngineLease:
    """The lease of one engine. One replica after the other holds it.

    All times are seconds of one clock.

    :param maker: the job that made the actor. No other job gets the engine before this one has had it: a job
        that no longer needs a new engine ends it without asking.
    """

    def __init__(self, now: float, maker: str) -> None:
        self._maker = maker
        self._is_new = True
        self._phase: Literal["free", "used", "returned", "ended"] = "free"
        self._holder: Holder | None = None
        self._since = self._heard = now
        self._ends_at = now + UNUSED
        self._seconds = 0.0
        self._longest_return = LONGEST_RETURN
        self._waits = 0

    @property
    def is_free(self) -> bool:
        """Whether it can be taken."""
        return self._phase == "free"

    @property
    def is_used(self) -> bool:
        """Whether it has a holder. One that is neither free nor used starts, or comes to rest."""
        return self._phase == "used"

    @property
    def reserved_for(self) -> str:
        """The maker whose job alone can take it, empty for any."""
        return self._maker if self._is_new else ""

    @property
    def is_ended(self) -> bool:
        """Whether it can't be taken any more."""
        return self._phase == "ended"

    def rests(self, now: float) -> tuple[float, float]:
        """Seconds for which it has been free, and for which it will be at most."""
        return now - self._since, max(0.0, self._ends_at - now)

    def is_of(self, holder: Holder) -> bool:
        """Whether this is its holder."""
        return self._phase == "used" and self._holder == holder

    def take(self, holder: Holder, maker: str, now: float) -> bool:
        """Become its holder.

        :param maker: of the holder's job.
        :returns: whether it was free, or is this one's already.
        """
        if self._phase == "free" and self.reserved_for in {"", maker}:
            self._phase, self._holder, self._heard, self._waits = "used", holder, now, 0
        return self.is_of(holder)

    def decline(self, holder: Holder) -> None:
        """The holder does not know of it yet: it is free as before."""
        if self.is_of(holder):
            self._phase, self._holder = "free", None

    def hear(self, holder: Holder, now: float) -> None:
        """The holder has called.

        :raises GivenAwayError: the caller is not the holder.
        """
        if not self.is_of(holder):
            raise GivenAwayError("The warm engine has another holder, or has ended.")
        self._heard = now

    def begin_wait(self, holder: Holder, now: float) -> None:
        """The holder waits for this actor: meanwhile it need not call.

        :raises GivenAwayError: the caller is not the holder.
        """
        self.hear(holder, now)
        self._waits += 1

    def end_wait(self, holder: Holder, now: float) -> None:
        """It has waited, if it is still the holder."""
        if self.is_of(holder):
            self._waits, self._heard = self._waits - 1, now

    def give_back(self, holder: Holder, seconds: float, now: float, longest: float = LONGEST_RETURN) -> None:
        """The holder no longer needs it; it can be taken when it :meth:`set_idle`.

        :param seconds: for which it waits for the next one at most.
        :param longest: seconds until it must have come to rest.
        :raises GivenAwayError: the caller is not the holder.
        """
        self.hear(holder, now)
        self._phase, self._holder = "returned", None
        self._seconds, self._longest_return = seconds, longest

    def set_idle(self, now: float) -> None:
        """Nothing of its last holder is left in it."""
        if self._phase == "returned":
            self._phase, self._since, self._ends_at = "free", now, now + self._seconds
            self._is_new = False

    def end(self) -> None:
        """It can't be taken any more."""
        self._phase, self._holder = "ended", None

    def verdict(self, now: float, is_wanted: bool) -> Literal["stay", "end", "kill"]:
        """What it is to do now.

        :param is_wanted: whether others wait for its GPUs.
        :returns: ``end`` if it can end in order, ``kill`` if it is unknown what its engine is doing.
        """
        if self._phase == "free":
            gives_way = is_wanted and now - self._since >= SHORTEST_REST
            return "end" if gives_way or now >= self._ends_at else "stay"
        if self._phase == "used":
            return "kill" if now - self._heard > (LONGEST_START if self._waits else SILENT) else "stay"
        if self._phase == "returned":
            return "kill" if now - self._heard > self._longest_return else "stay"
        return "stay"
