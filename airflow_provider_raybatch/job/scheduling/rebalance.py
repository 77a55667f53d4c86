# SPDX-License-Identifier: Apache-2.0
"""How many rows a replica gives back to another one, so that both end together.

Where no row is free, the one that will be done first takes from one that will be done last (steal-half:
Hendler and Shavit, PODC 2002; here half of the difference, by time instead of rows). Rows that are in an
engine can't be given back, so a replica asks before its own engine runs empty. One that has room takes some
also where no end would come sooner: paces are guesses, and an engine that hangs has one, too.
"""

from __future__ import annotations

from dataclasses import dataclass

EARLY_SECONDS = 1.5
"""Time until rows that another replica gives back can begin: it hears of it when it next calls, once a
second at least, and then they are read and tokenised."""
_LEAST_SHARE = 1 / 16
"""Of what a replica has: fewer rows are not worth a move, and could go back and forth."""


@dataclass(frozen=True)
class Load:
    """What a replica has to do.

    :param rows: those unanswered when it last reported.
    :param heard: seconds, by the clock of the queue.
    :param pace: rows that it answers in a second, more than 0; ``None`` before it has answered any.
    :param slots: rows that its engine runs at once.
    :param at_once: rows that it lets into its engine now.
    """

    rows: int
    heard: float
    pace: float | None
    slots: int
    at_once: int

    def left(self, now: float) -> float:
        """Rows that it has not answered by now, if its pace is as it was."""
        return max(0.0, self.rows - (self.pace or 0.0) * (now - self.heard))

    def pace_beside(self, other: Load) -> float:
        """Its pace; where that is not known, by its slots."""
        if self.pace is not None:
            return self.pace
        return self.slots * (1.0 if other.pace is None else other.pace / other.slots)


def to_move(now: float, own: Load, other: Load) -> int:
    """Return how many rows of another one make both end together; 0 where too few of them are not begun."""
    pace, its_pace = own.pace_beside(other), other.pace_beside(own)
    has, left = own.left(now), other.left(now)
    later = left / its_pace - has / pace
    rows = int(min(later * pace * its_pace / (pace + its_pace), left - other.at_once))
    return rows if rows > _LEAST_SHARE * has else 0


def to_fill(own: Load, ahead: int) -> int:
    """Return how many of the `ahead` rows that another has not let in go to one with room: half at most."""
    return max(0, min(own.at_once - own.rows, (ahead + 1) // 2))
