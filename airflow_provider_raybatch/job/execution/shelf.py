# SPDX-License-Identifier: Apache-2.0
"""The free rows of opened pieces, in the order in which replicas get them."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from airflow_provider_raybatch.job.execution.costs import Costs
from airflow_provider_raybatch.job.execution.pieces import Ordinals, Pieces

_SMALL_GROUP = 64
"""A group of up to so many rows is never split, even if fewer are asked for."""


class Shelf:
    """The free rows of the pieces that one replica has opened.

    Longest first: on m equal machines, a list that begins with the longest jobs takes at most 4/3 - 1/(3m)
    times as long as the optimum, any other list up to 2 - 1/m times (Graham, SIAM Journal on Applied
    Mathematics 17(2), 1969). Rows of about the same length, and rows of the same group, keep their order on
    disk.
    """

    def __init__(self, pieces: Pieces, costs: Costs) -> None:
        self._pieces = pieces
        self._costs = costs
        self._rows: Ordinals = np.empty(0, dtype=np.int64)
        self._version = costs.version

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, parts: Iterable[Ordinals]) -> None:
        """Put rows on it."""
        self._rows = np.concatenate([self._rows, *parts])
        self._sort()

    def take(self, count: int) -> Ordinals:
        """The next rows, at least one if there is one; a few more if a group would be split."""
        if self._costs.version != self._version:
            self._sort()
        count = self._whole_groups(max(1, count))
        taken, self._rows = self._rows[:count], self._rows[count:]
        return taken

    def clear(self) -> Ordinals:
        """Take all rows."""
        taken, self._rows = self._rows, self._rows[:0]
        return taken

    def _sort(self) -> None:
        self._version = self._costs.version
        ranks = self._costs.of(self._pieces, self._rows)
        if self._pieces.groups is None:
            self._rows = self._rows[np.lexsort((self._rows, -ranks))]
            return
        _, place, group = np.unique(self._pieces.groups[self._rows], return_index=True, return_inverse=True)
        longest: Ordinals = np.zeros(len(place), dtype=np.int64)
        np.maximum.at(longest, group, ranks)
        first = np.full(len(place), np.iinfo(np.int64).max)
        np.minimum.at(first, group, self._rows)
        self._rows = self._rows[np.lexsort((self._rows, first[group], -longest[group]))]

    def _whole_groups(self, count: int) -> int:
        groups = self._pieces.groups
        if groups is None or count >= len(self._rows):
            return count
        # A much larger group is split: the prefix cache pays off on both sides.
        window = max(count, _SMALL_GROUP)
        after = groups[self._rows[count : count + window]]
        others = np.flatnonzero(after != groups[self._rows[count - 1]])
        if len(others):
            return count + int(others[0])
        return count if len(after) == window else len(self._rows)
