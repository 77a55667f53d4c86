# SPDX-License-Identifier: Apache-2.0
"""The free rows of opened pieces, in the order in which replicas get them."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from airflow_provider_raybatch.job.execution.costs import Costs
from airflow_provider_raybatch.job.execution.pieces import Ordinals, Pieces


class Shelf:
    """The free rows of the pieces that one replica has opened.

    Longest first: on m equal machines, a list that begins with the longest jobs takes at most 4/3 - 1/(3m)
    times as long as the optimum, any other list up to 2 - 1/m times (Graham, SIAM Journal on Applied
    Mathematics 17(2), 1969). Rows of about the same length keep their order on disk.
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
        """The next rows, at least one if there is one."""
        if self._costs.version != self._version:
            self._sort()
        count = max(1, count)
        taken, self._rows = self._rows[:count], self._rows[count:]
        return taken

    def clear(self) -> Ordinals:
        """Take all rows."""
        taken, self._rows = self._rows, self._rows[:0]
        return taken

    def _sort(self) -> None:
        self._version = self._costs.version
        ranks = self._costs.of(self._pieces, self._rows)
        self._rows = self._rows[np.lexsort((self._rows, -ranks))]
