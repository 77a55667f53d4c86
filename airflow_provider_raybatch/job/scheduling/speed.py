# SPDX-License-Identifier: Apache-2.0
"""How fast replicas are, from what they say of themselves, and each one's part of the whole."""

from __future__ import annotations

from dataclasses import dataclass

_SECONDS_A_SAMPLE = 5.0
_NEWEST = 0.3
"""Weight of the newest sample: a change shows within three or four samples."""


@dataclass
class Speed:
    """Of one replica. Only samples of a full engine count: a starved one says nothing of its speed.

    :param slots: rows that its engine runs at once.
    :param since: when the sample began.
    :param pace: rows a second, ``None`` until it is known.
    :param rate: units of work a second, ``None`` until it is known.
    """

    slots: int
    since: float
    pace: float | None = None
    rate: float | None = None
    answered: int = 0
    work: float = 0.0
    was_full: bool = False

    def sample(self, now: float, answered: int, work: float, is_full: bool) -> None:
        """Count what it has done.

        :param answered: rows, since it joined.
        :param work: units of work, since it joined.
        :param is_full: whether its engine has been full since the last sample.
        """
        seconds = now - self.since
        if seconds < _SECONDS_A_SAMPLE:
            self.was_full = self.was_full and is_full
            return
        if self.was_full and is_full and answered >= self.slots:
            self.pace = _mixed(self.pace, (answered - self.answered) / seconds)
            self.rate = _mixed(self.rate, (work - self.work) / seconds)
        self.since, self.answered, self.work, self.was_full = now, answered, work, is_full


class Speeds:
    """The sum over the living replicas; where one is not known, it is taken for average."""

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

    def part(self, name: str, others: int = 0) -> float:
        """The replica's part (0 to 1) of the speed of all.

        :param others: replicas more, each with as many slots as this one.
        """
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
