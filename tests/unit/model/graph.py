# SPDX-License-Identifier: Apache-2.0
"""The states in which a world was found, and the steps between them."""

from __future__ import annotations

import graphlib
from collections import defaultdict
from collections.abc import Hashable

Cost = tuple[int, ...]


class Graph:
    """A graph of numbered states; the world begins in state 0.

    :ivar ends: states in which nothing happens any more, with the kind of each.
    """

    def __init__(self) -> None:
        self._ways: dict[int, set[tuple[int, bool, Cost]]] = defaultdict(set)
        self.ends: dict[int, Hashable] = {}
        self.executions = 0

    def __str__(self) -> str:
        ways = sum(len(ways) for ways in self._ways.values())
        return f"{len(self.states)} states, {ways} ways between them, {self.executions} executions"

    def add(self, state: int, other: int, is_fault: bool, cost: Cost) -> None:
        """Add a step from a state to another.

        :param cost: what the step adds to each count.
        """
        self._ways[state].add((other, is_fault, cost))

    def end(self, state: int, kind: Hashable) -> None:
        """Mark a state in which nothing happens any more."""
        self.ends[state] = kind

    @property
    def states(self) -> set[int]:
        """Return all states."""
        return {0, *self._ways, *(other for ways in self._ways.values() for other, _, _ in ways)}

    def stuck(self) -> set[int]:
        """Return the states from which no end is reached without a fault."""
        sources = defaultdict(set)
        for state, ways in self._ways.items():
            for other, is_fault, _ in ways:
                if not is_fault:
                    sources[other].add(state)
        good, found = set(self.ends), list(self.ends)
        while found:
            fresh = sources[found.pop()] - good
            good |= fresh
            found += fresh
        return self.states - good

    def most(self, count: int) -> dict[Hashable, int]:
        """Return the highest cost of an execution, by the kind of its end.

        :raises graphlib.CycleError: a cycle exists that is more than one idle step.
        """
        before: dict[int, dict[int, int]] = {state: {} for state in self.states}
        for state, ways in self._ways.items():
            for other, _, cost in ways:
                if other != state:
                    before[other][state] = max(before[other].get(state, 0), cost[count])
        sums: dict[int, int] = {}
        for state in graphlib.TopologicalSorter(before).static_order():
            sums[state] = max((sums[one] + cost for one, cost in before[state].items()), default=0)
        most: dict[Hashable, int] = {}
        for state, kind in self.ends.items():
            most[kind] = max(most.get(kind, 0), sums[state])
        return most
