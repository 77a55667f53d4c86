# SPDX-License-Identifier: Apache-2.0
"""How many rows a replica holds, and how many it gives back so that all end together.

Guided self-scheduling (Polychronopoulos and Kuck, IEEE Transactions on Computers C-36(12), 1987) gives a
worker that asks 1/P of what is left. Its first pieces are so large that they may last longer than all the
rest. Factoring (Hummel, Schonberg and Flynn, CACM 35(8), 1992) gives half of that, and leaves the rest to
even out differences; weighted factoring (Hummel, Schmidt, Uma and Wein, SPAA 1996) splits it by the workers'
speeds. Here only the lead follows that rule: the rows beyond those that the engine runs.

Where no row is free, the one that will be done first takes from one that will be done last (steal-half:
Hendler and Shavit, PODC 2002; here half of the difference, by time instead of rows). Rows that are in an
engine can't be given back, so a replica asks before its own engine runs empty. One that has room takes some
also where no end would come sooner: paces are guesses, and an engine that hangs has one, too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

_LEAD_SECONDS = 10.0
"""Seconds of rows that wait in a replica while there is much to do: about `flush_interval`, at which it calls
anyway."""
_LEAST_SECONDS = 0.5
"""Time from a pull until its first row can enter the engine; this much is always prefetched."""
WINDOW = 4.0
"""A replica holds this many times its slots while there is much to do, so that the longest rows among them
can begin first."""
_WINDOW_BYTES = 2.0**28
"""It holds fewer rows where they have more input than this."""
_SECONDS_A_SAMPLE = 5.0
_NEWEST = 0.3
"""Weight of the newest sample: a change shows within three or four samples."""


def prefetch_target(
    slots: int, pace: float | None, share: float, soon: float, free: int, unanswered: int, row_bytes: float
) -> tuple[int, int, bool]:
    """What a replica is to hold now.

    :param slots: rows that its engine runs at once.
    :param pace: rows that it answers in a second, ``None`` before that is known.
    :param share: its share (0 to 1) of the speed of all replicas that live, or are about to.
    :param soon: the same, with those that are starting. Beyond its slots, it leaves their share to them.
    :param free: rows that no replica has.
    :param unanswered: rows that are free, or that a replica has and has not answered.
    :param row_bytes: bytes of input a row.
    :returns: how many unanswered rows, those in its engine included; below how many it asks again; and
        whether that is its share of all that are left.
    """
    wanted = slots if pace is None else pace * _LEAD_SECONDS
    least = 1.0 if pace is None else max(1.0, pace * _LEAST_SECONDS)
    lead = max(least, min(wanted, free * soon / 2))
    fair = max(1, min(slots, math.ceil(unanswered * share)), math.ceil(unanswered * soon))
    window = min(WINDOW * slots, _WINDOW_BYTES / max(1.0, row_bytes))
    most = max(slots + math.ceil(lead), int(window))
    rows = min(most, fair)
    return rows, max(0, rows - math.ceil(lead / 2)), fair <= most


@dataclass
class Speed:
    """A replica's speed, from samples of a full engine: rows and units of work a second, once known."""

    slots: int
    since: float
    pace: float | None = None
    rate: float | None = None
    answered: int = 0
    work: float = 0.0
    was_full: bool = False

    def sample(self, now: float, answered: int, work: float, is_full: bool) -> None:
        """Count rows answered and units of work done since it joined, where its engine has been full."""
        seconds = now - self.since
        if seconds < _SECONDS_A_SAMPLE:
            self.was_full = self.was_full and is_full
            return
        if self.was_full and is_full and answered >= self.slots:
            self.pace = _mixed(self.pace, (answered - self.answered) / seconds)
            self.rate = _mixed(self.rate, (work - self.work) / seconds)
        self.since, self.answered, self.work, self.was_full = now, answered, work, is_full


class Speeds:
    """The speeds of the living replicas; one that is not known counts as average."""

    def __init__(self) -> None:
        self._rates: dict[str, tuple[int, float | None]] = {}
        self._known_slots = self._other_slots = 0
        self._known_rate = 0.0

    def set(self, name: str, slots: int, rate: float | None) -> None:
        """Keep a replica's speed."""
        self.drop(name)
        self._rates[name] = slots, rate
        self._count(slots, rate, 1)

    def drop(self, name: str) -> None:
        """Forget a replica."""
        if name in self._rates:
            self._count(*self._rates.pop(name), -1)

    def share(self, name: str, others: int = 0) -> float:
        """The replica's share (0 to 1) of the speed of all, with so many `others` that have as many slots."""
        slots, rate = self._rates[name]
        usual = self._known_rate / self._known_slots if self._known_slots and self._known_rate > 0 else 1.0
        total = self._known_rate + (self._other_slots + others * slots) * usual
        own = slots * usual if rate is None else rate
        return min(1.0, own / total) if total > 0 else 1.0

    def _count(self, slots: int, rate: float | None, sign: int) -> None:
        if rate is None:
            self._other_slots += sign * slots
        else:
            self._known_slots += sign * slots
            self._known_rate += sign * rate


def _mixed(known: float | None, newest: float) -> float:
    return newest if known is None else (1 - _NEWEST) * known + _NEWEST * newest


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
