# SPDX-License-Identifier: Apache-2.0
"""How large a world is in which poison rows are searched, and what happens in it."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Scope:
    """How large the world is, and what happens in it.

    :param pieces: rows of each.
    :param slots: rows that an engine works on at a time.
    :param killers: rows of which an engine ends by itself.
    :param hogs: rows of which the system kills the engine.
    :param bad: rows that make no request.
    :param faults: what may come from outside, see :meth:`World.options` and :meth:`World.called`.
    :param times: how many faults.
    :param restarts: `max_restarts`.
    :param fewest: replicas that stay while rows are left; all by default.
    """

    pieces: tuple[int, ...]
    replicas: int = 1
    slots: int = 2
    killers: frozenset[int] = frozenset()
    hogs: frozenset[int] = frozenset()
    bad: frozenset[int] = frozenset()
    faults: tuple[str, ...] = ()
    times: int = 1
    restarts: int = 3
    fewest: int = 0

    def __str__(self) -> str:
        fields = {
            name: sorted(value) if isinstance(value, frozenset) else value
            for name, value in vars(self).items()
        }
        return ", ".join(f"{name} {value}" for name, value in fields.items() if value)

    @property
    def rows(self) -> range:
        return range(sum(self.pieces))

    @property
    def deadly(self) -> frozenset[int]:
        return self.killers | self.hogs

    def restarts_to_find(self, suspects: int) -> int:
        """Restarts that one row takes to be found among so many at most."""
        return max(2, math.ceil(math.log2(suspects)) + 1)
