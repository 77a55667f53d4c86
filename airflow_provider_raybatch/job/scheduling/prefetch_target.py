# SPDX-License-Identifier: Apache-2.0
"""How many rows a replica holds: what its engine runs, a lead that shrinks, and its fair share at most.

Guided self-scheduling (Polychronopoulos and Kuck, IEEE Transactions on Computers C-36(12), 1987) gives a
worker that asks 1/P of what is left. Its first pieces are so large that they may last longer than all the
rest. Factoring (Hummel, Schonberg and Flynn, CACM 35(8), 1992) gives half of that, and leaves the rest to
even out differences; weighted factoring (Hummel, Schmidt, Uma and Wein, SPAA 1996) splits it by the workers'
speeds. Here only the lead follows that rule: the rows beyond those that the engine runs.
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
