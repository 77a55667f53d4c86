# SPDX-License-Identifier: Apache-2.0
"""The rows that no replica has, in the order in which replicas get them."""

from __future__ import annotations

import numpy as np

from airflow_provider_raybatch.job.scheduling.content_locations import ContentLocations
from airflow_provider_raybatch.job.scheduling.messages import no_rows
from airflow_provider_raybatch.job.scheduling.row_index import Ordinals, RowIndex


class PendingRows:
    """What is left of opened pieces, what came back, and the pieces that no replica has opened."""

    def __init__(self, pieces: RowIndex, locations: ContentLocations) -> None:
        self._pieces = pieces
        self._locations = locations
        self._order = np.flatnonzero(pieces.left > 0)
        self._next = 0
        self._returned: dict[int, Ordinals] = {}
        self._opened: dict[str, Ordinals] = {}
        """By the replica that has opened their piece, where some are left; by no name if order counts."""
        self.count = int(pieces.left.sum())
        """How many there are."""

    def take(self, name: str, count: int) -> Ordinals:
        """Up to `count` rows for a replica, of pieces that it has opened before others'."""
        if count <= 0 or not self.count:
            return no_rows()
        name = "" if self._pieces.in_order else name
        self._open(name, count)
        parts = [no_rows()]
        while count > 0 and self._opened:
            owner = name if name in self._opened else max(self._opened, key=self._left)
            rows = self._opened.pop(owner)
            parts.append(rows[:count])
            if len(rows) > count:
                self._opened[owner] = rows[count:]
            count -= len(parts[-1])
        taken = np.concatenate(parts)
        self.count -= len(taken)
        return taken

    def put_back(self, rows: Ordinals) -> None:
        """Rows that a replica had are free again."""
        self._locations.reopen(rows)
        self._return(rows)
        self.count += len(rows)

    def drop(self, name: str) -> None:
        """Forget a replica: the rows of the pieces that it has opened are for all."""
        self._return(self._opened.pop(name, no_rows()))

    def _open(self, name: str, count: int) -> None:
        """Give it rows that came back, and pieces that no replica has opened, until it has `count` rows."""
        parts = [self._opened.get(name, no_rows())]
        have = len(parts[0])
        while self._returned and (have < count or self._pieces.in_order):
            parts.append(self._returned.pop(next(iter(self._returned))))
            have += len(parts[-1])
        while have < count and self._next < len(self._order):
            piece = int(self._order[self._next])
            self._next += 1
            parts.append(self._pieces.rows(piece))
            self._locations.open(piece, len(parts[-1]))
            have += len(parts[-1])
        if len(parts) > 1:
            self._opened[name] = np.sort(np.concatenate(parts))

    def _left(self, name: str) -> int:
        return len(self._opened[name])

    def _return(self, rows: Ordinals) -> None:
        for piece, part in self._pieces.split(rows).items():
            known = self._returned.get(piece)
            self._returned[piece] = part if known is None else np.concatenate([known, part])
