# SPDX-License-Identifier: Apache-2.0
"""The current rate of a count that grows in steps; unknown until it is steady. Pure: time is an argument."""

from __future__ import annotations

from collections import deque
from itertools import pairwise

_WINDOW = 60.0
_LEAST_SECONDS = 10.0
_LEAST_STEPS = 4
_LEAST_COUNT = 20
_STEADY = 1.5


class SteadyRate:
    """Units per second over the last minute, or over the last 20 units if these took longer.

    Rows finish in waves, as an engine answers many at once, so the time is measured from wave to wave. The
    rate is given once 20 units in 4 steps took 10 seconds, while the younger half of that time went as fast
    as the whole, within a factor of 1.5.
    """

    def __init__(self) -> None:
        self._steps: deque[tuple[float, int]] = deque()

    def add(self, now: float, count: int) -> None:
        """Add a reading; the first one starts the measurement.

        :param count: units so far. A lower count than before means that units were lost and are redone.
        """
        if not self._steps:
            self._steps.append((now, count))
            return
        last = self._steps[-1][1]
        if count < last:
            self._steps = deque((at, known - last + count) for at, known in self._steps)
        elif count > last:
            self._steps.append((now, count))
        while (
            len(self._steps) > _LEAST_STEPS
            and self._steps[1][0] <= now - _WINDOW
            and self._steps[-1][1] - self._steps[1][1] >= _LEAST_COUNT
        ):
            self._steps.popleft()

    def rate(self, now: float) -> float | None:
        """Units per second, ``None`` while it is not known."""
        if len(self._steps) < _LEAST_STEPS:
            return None
        steps = list(self._steps)
        longest_pause = max(later[0] - earlier[0] for earlier, later in pairwise(steps))
        silence = max(0.0, now - steps[-1][0] - longest_pause)
        steps[-1] = (steps[-1][0] + silence, steps[-1][1])
        seconds, count = _between(steps[0], steps[-1])
        if seconds < _LEAST_SECONDS or count < _LEAST_COUNT:
            return None
        middle = next(step for step in reversed(steps[:-1]) if steps[-1][0] - step[0] >= seconds / 2)
        younger_seconds, younger_count = _between(middle, steps[-1])
        whole, younger = count / seconds, younger_count / younger_seconds
        return whole if whole / _STEADY <= younger <= whole * _STEADY else None


def _between(earlier: tuple[float, int], later: tuple[float, int]) -> tuple[float, int]:
    return later[0] - earlier[0], later[1] - earlier[1]
