# SPDX-License-Identifier: Apache-2.0
"""The size of a world in which poison rows are searched, and its events."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Scope:
    """The size of the world, and its events.

    :param pieces: number of rows of each piece.
    :param slots: rows that an engine works on at a time.
    :param killers: rows that make an engine end by itself.
    :param hogs: rows that make the system kill the engine.
    :param bad: rows that make no request.
    :param equal: rows that ask the same; then all rows share answers. They are good, or all deadly.
    :param faults: kinds of outside events, see :meth:`World.options` and :meth:`World.called`.
    :param times: number of faults.
    :param restarts: `max_restarts`.
    :param fewest: replicas that stay while rows are left; all by default.
    """

    pieces: tuple[int, ...]
    replicas: int = 1
    slots: int = 2
    killers: frozenset[int] = frozenset()
    hogs: frozenset[int] = frozenset()
    bad: frozenset[int] = frozenset()
    equal: frozenset[int] = frozenset()
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

    def key(self, row: int) -> bytes | None:
        """Return the key of a row's request, where answers are shared."""
        number = min(self.equal) if row in self.equal else row
        return 2 * number.to_bytes(8, "big") if self.equal else None

    def restarts_to_find(self, suspected: int) -> int:
        """Return the most restarts that it takes to find one poison row among `suspected` ones."""
        return max(2, math.ceil(math.log2(suspected)) + 1)
