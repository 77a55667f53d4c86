# SPDX-License-Identifier: Apache-2.0
"""How long prompts and answers are: a histogram whose memory does not grow with the rows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from airflow_provider_raybatch.contract.report import Bin

_MOST_DISTINCT = 4096
_MOST_BINS = 20
_TAIL = 0.99
"""Share of the rows that bins of one width show, if the longest row is more than twice as long as they."""


class Lengths:
    """Counts lengths: exactly while few differ, then in classes that double in width."""

    def __init__(self) -> None:
        self._width = 1
        self._rows: dict[int, int] = {}
        """By length in units of the width, rounded down."""
        self._least, self._longest = 0, -1

    def add(self, lengths: npt.NDArray[np.int64]) -> None:
        """Count one row for each length."""
        if len(lengths):
            classes, counts = np.unique(lengths // self._width, return_counts=True)
            counted = dict(zip(classes.tolist(), counts.tolist(), strict=True))
            self._take(counted, int(lengths.min()), int(lengths.max()))

    def merge(self, other: Lengths) -> None:
        """Add what `other` has counted."""
        if other._rows:
            self._widen(other._width)
            factor = self._width // other._width
            counted: dict[int, int] = {}
            for length, rows in other._rows.items():
                counted[length // factor] = counted.get(length // factor, 0) + rows
            self._take(counted, other._least, other._longest)

    def _take(self, counted: dict[int, int], least: int, longest: int) -> None:
        self._least = least if self._longest < 0 else min(self._least, least)
        self._longest = max(self._longest, longest)
        for length, rows in counted.items():
            self._rows[length] = self._rows.get(length, 0) + rows
        while len(self._rows) > _MOST_DISTINCT:
            self._widen(2 * self._width)

    def _widen(self, width: int) -> None:
        factor = width // self._width
        if factor <= 1:
            return
        rows, self._rows, self._width = self._rows, {}, width
        for length, count in rows.items():
            self._rows[length // factor] = self._rows.get(length // factor, 0) + count

    @property
    def bins(self) -> list[Bin]:
        """At most 21 bins of one width, from the least length on; the last one may hold a long tail."""
        if not self._rows:
            return []
        lengths = sorted(self._rows)
        usual = self._usual(lengths)
        width = _nice(-(-(usual - self._least + 1) // _MOST_BINS), self._width)
        first = self._least // width * width
        bins: dict[int, int] = dict.fromkeys(range((usual - first) // width + 1), 0)
        tail = 0
        for length in lengths:
            place = (length * self._width - first) // width
            if max(0, place) in bins:
                bins[max(0, place)] += self._rows[length]
            else:
                tail += self._rows[length]
        end = first + len(bins) * width
        made = [
            Bin(first=first + n * width, last=first + (n + 1) * width - 1, rows=r) for n, r in bins.items()
        ]
        return [*made, Bin(first=end, last=self._longest, rows=tail)] if tail else made

    def _usual(self, lengths: Sequence[int]) -> int:
        """The longest length that gets bins of its own."""
        left = _TAIL * sum(self._rows.values())
        for length in lengths:
            left -= self._rows[length]
            if left <= 0:
                top = (length + 1) * self._width - 1
                return self._longest if self._longest <= 2 * max(1, top) else top
        return self._longest


def _nice(least: int, unit: int) -> int:
    """The smallest of 1, 2, 5, 10, ... times `unit` that is at least `least`."""
    power = unit
    while True:
        for factor in (1, 2, 5):
            if factor * power >= least:
                return factor * power
        power *= 10
