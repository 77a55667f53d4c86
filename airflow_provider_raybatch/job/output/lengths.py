# SPDX-License-Identifier: Apache-2.0
"""How long prompts and answers are, as a histogram."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from airflow_provider_raybatch.contract.report import Bin

_MOST_BINS = 20
_TAIL = 0.99
"""Share of the rows that bins of one width show, if the longest row is more than twice as long as they."""


class Lengths:
    """Counts lengths. They are kept exactly, since a model's context bounds how many of them differ."""

    def __init__(self) -> None:
        self._rows: Counter[int] = Counter()

    def add(self, lengths: npt.NDArray[np.int64]) -> None:
        """Count one row for each length."""
        found, rows = np.unique(lengths, return_counts=True)
        self._rows.update(dict(zip(found.tolist(), rows.tolist(), strict=True)))

    def merge(self, other: Lengths) -> None:
        """Add what `other` has counted."""
        self._rows.update(other._rows)

    @property
    def bins(self) -> list[Bin]:
        """At most 21 bins of one width, from the least length on; the last one may hold a long tail."""
        if not self._rows:
            return []
        lengths = sorted(self._rows)
        usual = self._usual(lengths)
        width = _nice(-(-(usual - lengths[0] + 1) // _MOST_BINS))
        first = lengths[0] // width * width
        most = (usual - first) // width + 1
        rows: Counter[int] = Counter()
        for length in lengths:
            rows[min((length - first) // width, most)] += self._rows[length]
        made = [
            Bin(first=first + n * width, last=first + (n + 1) * width - 1, rows=rows[n]) for n in range(most)
        ]
        tail = Bin(first=first + most * width, last=lengths[-1], rows=rows[most])
        return [*made, tail] if tail.rows else made

    def _usual(self, lengths: Sequence[int]) -> int:
        """The longest length that gets bins of its own."""
        left = _TAIL * sum(self._rows.values())
        for length in lengths:
            left -= self._rows[length]
            if left <= 0:
                break
        return lengths[-1] if lengths[-1] <= 2 * max(1, length) else length


def _nice(least: int) -> int:
    """The smallest of 1, 2, 5, 10, ... that is at least `least`."""
    power = 1
    while True:
        for factor in (1, 2, 5):
            if factor * power >= least:
                return factor * power
        power *= 10
