# SPDX-License-Identifier: Apache-2.0
"""The search for a row that kills the engine, by halving what was in it.

Suspected rows run with no other row beside them. The first death makes two groups of the rows that were in
the engine. A group that kills the engine is halved again. A group that passes is cleared. So a single row
that kills is found after at most ceil(log2(n)) + 1 deaths, n being the rows in the engine at the first one,
and after two at least.

A process that says nothing before it ends (a lost node, a SIGKILL, no memory) proves little: then a single
row is blamed for the fourth death in which it was alone.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np

from airflow_provider_raybatch.job.execution.pieces import Ordinals

_SILENT_DEATHS_TO_BLAME = 4


@dataclass(frozen=True)
class Group:
    """Rows that are to run with no other row in the engine.

    :param silent_deaths: of processes that had exactly these rows, and did not say why they ended.
    """

    rows: Ordinals
    silent_deaths: int = 0


class Suspicion:
    """Groups that wait for an empty engine, and the rows that were found to kill it."""

    def __init__(self) -> None:
        self.groups: deque[Group] = deque()
        self.poison: Ordinals = np.empty(0, dtype=np.int64)
        """Rows to be reported as failed, and not to be run again."""

    def suspect(self, rows: Ordinals) -> None:
        """An engine died with these rows and maybe with others in it: the first death."""
        if len(rows):
            self._halve(rows)

    def died(self, group: Group, engine_died: bool) -> None:
        """An engine died with this group alone.

        :param engine_died: whether the replica said that its engine ended by itself.
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
