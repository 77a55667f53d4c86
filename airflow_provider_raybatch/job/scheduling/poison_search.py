# SPDX-License-Identifier: Apache-2.0
"""Find the row that kills the engine, by halving the rows that were in it.

Suspected rows run without other rows in the engine. The first death makes two groups of the rows that were in
the engine. A group that kills the engine is halved again; a group that finishes is cleared. So one poison row
is found after at least 2 and at most ceil(log2(n)) + 1 deaths, where n is the number of rows in the engine at
the first death.

A process that ends without a report (a lost node, a SIGKILL, no memory) is weak evidence: a single row is
blamed only at the fourth such death in which it was alone.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np

from airflow_provider_raybatch.job.scheduling.row_index import Ordinals, no_rows

_SILENT_DEATHS_TO_BLAME = 4
_SECONDS_FOR_AN_EMPTY_ENGINE = 60.0
"""Suspected rows wait this long for a replica that starts or is idle; then one is emptied for them."""


@dataclass(frozen=True)
class Group:
    """Rows that run without others, and deaths without a report of processes with exactly these."""

    rows: Ordinals
    silent_deaths: int = 0


class PoisonSearch:
    """Groups that wait for an empty engine, and the poison rows, to be reported as failed."""

    def __init__(self) -> None:
        self.groups: deque[Group] = deque()
        self.poison: Ordinals = no_rows()
        self._since = 0.0
        self._emptied: str | None = None

    def begin(self, rows: Ordinals, prepared: Ordinals, now: float) -> None:
        """An engine died with these rows in it. Those that were `prepared` are tried last, and together."""
        self._note_time(now)
        self._halve(rows)
        if len(prepared):
            self.groups.append(Group(prepared))

    def died(self, group: Group, waiting: Ordinals, engine_died: bool, now: float) -> None:
        """An engine died with no other rows than this group's in it.

        :param waiting: rows of the group that had not begun.
        :param engine_died: whether the replica reported that its engine ended by itself.
        """
        self._note_time(now)
        silent = 0 if engine_died else group.silent_deaths + 1
        if len(group.rows) > 1:
            self._halve(group.rows)
        elif len(group.rows) and (engine_died or silent >= _SILENT_DEATHS_TO_BLAME):
            self.blame(group.rows)
        elif len(group.rows):
            self.groups.append(Group(group.rows, silent))
        if len(waiting):
            self.groups.append(Group(waiting, 0 if len(group.rows) else group.silent_deaths))

    def blame(self, rows: Ordinals) -> None:
        """These rows have killed an engine; they are reported as failed."""
        self.poison = np.concatenate([self.poison, rows])

    def take_poison(self) -> Ordinals:
        """The poison rows, to be reported; each is given out once."""
        taken, self.poison = self.poison, no_rows()
        return taken

    def claims(self, name: str, is_idle: bool, now: float) -> bool:
        """Whether a replica runs suspected rows next, or gets no others so that it can."""
        if not self.groups:
            self._emptied = None
            return False
        if not is_idle and self._emptied is None and now - self._since >= _SECONDS_FOR_AN_EMPTY_ENGINE:
            self._emptied = name
        return is_idle or self._emptied == name

    def drop(self, name: str) -> None:
        """Forget a replica: another one may be emptied."""
        if self._emptied == name:
            self._emptied = None

    def last_row(self) -> Group | None:
        """A single suspected row; ``None`` where there is none."""
        if not self.groups:
            return None
        group = self.groups.pop()
        if len(group.rows) < 2:
            return group
        self.groups.append(Group(group.rows[:-1]))
        return Group(group.rows[-1:])

    def _note_time(self, now: float) -> None:
        if not self.groups:
            self._since = now

    def _halve(self, rows: Ordinals) -> None:
        middle = (len(rows) + 1) // 2
        self.groups.extend(Group(half) for half in (rows[:middle], rows[middle:]) if len(half))
