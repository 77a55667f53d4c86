# SPDX-License-Identifier: Apache-2.0
"""Who has a kept engine, and for how long: what its actor decides, under a clock that others read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

SILENT = 15.0
"""Seconds without a call after which the user counts as dead; it calls every two."""
UNUSED = 30.0
"""Seconds that a new actor waits for its first user. The one that made it looks every two."""
LONGEST_START = 600.0
"""Seconds that vLLM's import, or the end of another engine, may take while the user waits for it."""
LONGEST_RETURN = 60.0
"""Seconds for an engine to cancel what its last user left."""
KEPT_FOR_ITS_LIKE = 5.0
"""Seconds of rest before it makes room for others: a job that waits for its like has taken it by then."""


@dataclass(frozen=True)
class Holder:
    """The replica that has the engine.

    :param actor: id of its actor, which Ray starts again after a death.
    :param process: its process.
    """

    actor: str
    process: str


class GivenAwayError(Exception):
    """The caller is not the user of this engine, or is no longer."""


class EngineLease:
    """Of one engine. An actor of its own holds its GPUs; replicas have it one after the other.

    All times are seconds of one clock.

    :param maker: the job that made the actor. Until that one has had it, or has let it wait in vain, no other
        gets it: a job that has no need of it any more ends it without asking.
    """

    def __init__(self, now: float, maker: str) -> None:
        self._maker = maker
        self._is_new = True
        self._phase: Literal["free", "used", "returned", "ended"] = "free"
        self._user: Holder | None = None
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
        """Whether it has a user. One that is neither free nor used starts, or comes to rest."""
        return self._phase == "used"

    @property
    def reserved_for(self) -> str:
        """The maker whose job alone can take it, empty for any."""
        return self._maker if self._is_new else ""

    @property
    def is_ended(self) -> bool:
        """Whether no one can have it any more."""
        return self._phase == "ended"

    def rests(self, now: float) -> tuple[float, float]:
        """Seconds for which it has been free, and for which it will be at most."""
        return now - self._since, max(0.0, self._ends_at - now)

    def is_of(self, user: Holder) -> bool:
        """Whether this is its user."""
        return self._phase == "used" and self._user == user

    def take(self, user: Holder, maker: str, now: float) -> bool:
        """Become its user.

        :param maker: of the user's job.
        :returns: whether it was free, or is this one's already.
        """
        if self._phase == "free" and self.reserved_for in {"", maker}:
            self._phase, self._user, self._heard, self._waits = "used", user, now, 0
        return self.is_of(user)

    def decline(self, user: Holder) -> None:
        """The user has never heard of it: it is free as before."""
        if self.is_of(user):
            self._phase, self._user = "free", None

    def hear(self, user: Holder, now: float) -> None:
        """The user has called.

        :raises GivenAwayError: the caller is not the user.
        """
        if not self.is_of(user):
            raise GivenAwayError("The kept engine has another user, or has ended.")
        self._heard = now

    def begin_wait(self, user: Holder, now: float) -> None:
        """The user waits for this actor: meanwhile it need not call.

        :raises GivenAwayError: the caller is not the user.
        """
        self.hear(user, now)
        self._waits += 1

    def end_wait(self, user: Holder, now: float) -> None:
        """It has waited, if it is the user still."""
        if self.is_of(user):
            self._waits, self._heard = self._waits - 1, now

    def give_back(self, user: Holder, seconds: float, now: float, longest: float = LONGEST_RETURN) -> None:
        """The user needs it no more; it can be taken when it :meth:`has_come_to_rest`.

        :param seconds: for which it waits for the next one at most.
        :param longest: seconds until it must have come to rest.
        :raises GivenAwayError: the caller is not the user.
        """
        self.hear(user, now)
        self._phase, self._user = "returned", None
        self._seconds, self._longest_return = seconds, longest

    def has_come_to_rest(self, now: float) -> None:
        """Nothing of its last user is left in it."""
        if self._phase == "returned":
            self._phase, self._since, self._ends_at = "free", now, now + self._seconds
            self._is_new = False

    def end(self) -> bool:
        """Let no one have it any more.

        :returns: whether it was free.
        """
        was_free, self._phase, self._user = self.is_free, "ended", None
        return was_free

    def verdict(self, now: float, is_wanted: bool) -> Literal["stay", "end", "kill"]:
        """What it is to do now.

        :param is_wanted: whether others wait for its GPUs.
        :returns: ``end`` where it can end in order, ``kill`` where no one knows what its engine is doing.
        """
        if self._phase == "free":
            gives_way = is_wanted and now - self._since >= KEPT_FOR_ITS_LIKE
            return "end" if gives_way or now >= self._ends_at else "stay"
        if self._phase == "used":
            return "kill" if now - self._heard > (LONGEST_START if self._waits else SILENT) else "stay"
        if self._phase == "returned":
            return "kill" if now - self._heard > self._longest_return else "stay"
        return "stay"
