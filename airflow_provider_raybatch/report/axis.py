# SPDX-License-Identifier: Apache-2.0
"""Where the marks of an axis are, and what stands beside them."""

from __future__ import annotations

import math
from dataclasses import dataclass

from airflow_provider_raybatch.report import words

_TIMES = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400)
_UNITS = ((86400, "d"), (3600, "h"), (60, "min"))


@dataclass(frozen=True)
class Axis:
    """An axis from 0 to `end`, with marks at values and their texts."""

    end: float
    marks: tuple[tuple[float, str], ...]

    def at(self, value: float) -> float:
        """The place of a value, from 0 to 1."""
        return min(1.0, max(0.0, value / self.end))


def number_axis(largest: float, most: int = 4, whole: bool = False, exact: bool = False) -> Axis:
    """An axis of numbers from 0 to at least `largest`.

    :param most: steps.
    :param whole: whether marks are whole numbers.
    :param exact: whether the axis ends at `largest`, be there a mark or not.
    """
    if not 0 < largest < 1e300:
        largest = 1.0
    power = 10 ** math.floor(math.log10(largest / most))
    step = next(
        (times * power for times in (1, 2, 2.5, 5, 10) if times * power * most >= largest), 10 * power
    )
    if whole and step < 1:
        step = 1.0
    elif whole:
        step = math.ceil(step) if step < 10 else step
    count = int(largest / step) if exact else max(1, math.ceil(largest / step - 1e-9))
    marks = tuple((place * step, words.short(place * step)) for place in range(count + 1))
    return Axis(largest if exact else count * step, marks)


def time_axis(largest: float, most: int = 5) -> Axis:
    """An axis of seconds from 0, in the unit that fits."""
    if not 0 < largest < 1e300:
        largest = 1.0
    if largest < 2:
        found = number_axis(largest, most)
        return Axis(found.end, tuple((value, f"{text} s") for value, text in found.marks))
    days = math.ceil(largest / 86400 / most)
    step = next((one for one in _TIMES if one * most >= largest), 86400 * days)
    size, unit = next(((size, unit) for size, unit in _UNITS if step >= size), (1, "s"))
    marks = tuple(
        (place * step, f"{words.short(place * step / size)} {unit}")
        for place in range(int(largest / step) + 1)
    )
    return Axis(largest, marks)
