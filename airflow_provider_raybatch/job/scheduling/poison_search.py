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

from airflow_provider_raybatch.job.scheduling.row_index import Ordinals

_SILENT_DEATHS_TO_BLAME = 4


@dataclass(frozen=True)
class Group:
    """Rows that must run without other rows in the engine.

    :param silent_deaths: deaths of processes that had exactly these rows, without a report of the reason.
    """

    rows: Ordinals
    silent_deaths: int = 0


class PoisonSearch:
    """Groups that wait for an empty engine, and the poison rows found so far."""

    def __init__(self) -> None:
        self.groups: deque[Group] = deque()
        self.poison: Ordinals = np.empty(0, dtype=np.int64)
        """Rows to report as failed and never to run again."""

    def suspect(self, rows: Ordinals) -> None:
        """The first death of an engine, with these rows and maybe others in it."""
        if len(rows):
            self._halve(rows)

    def suspect_together(self, rows: Ordinals) -> None:
        """A process died while it prepared these rows: they are tried last, and together."""
        if len(rows):
            self.groups.append(Group(rows))

    def died(self, group: Group, engine_died: bool) -> None:
        """An engine died with this group alone.

        :param engine_died: whether the replica reported that its engine ended by itself.
        """
        silent = 0 if engine_died else group.silent_deaths + 1
        if len(group.rows) > 1:
            self._halve(group.rows)
        elif engine_died or silent >= _SILENT_DEATHS_TO_BLAME:
            self.poison = np.concatenate([self.poison, group.rows])
        else:
            self.groups.append(Group(group.rows, silent))

    def _halve(self, rows: Ordinals) -> None:
        middle = (len(rows) + 1) // 2
        self.groups.extend(Group(half) for half in (rows[:middle], rows[middle:]) if len(half))
