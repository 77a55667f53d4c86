# SPDX-License-Identifier: Apache-2.0
"""Explores all executions of a world of steps, each state once: depth first, each from the start."""

from __future__ import annotations

import graphlib
import os
from collections import defaultdict
from collections.abc import Callable, Hashable
from typing import Any, Protocol

import pytest

POWER = [pytest.param(False, id="killed"), pytest.param(True, id="power lost")]
thorough = pytest.mark.thorough("larger explorations of the models; others of each kind run always")
EFFORT = os.environ.get("RAYBATCH_MODEL", "some")
"""``some`` at each commit, ``more`` in `make test-all`, ``all`` by hand."""
STRIDE = {"some": 191, "more": 23, "all": 1}[EFFORT]
EACH = 4 if EFFORT == "some" else 1
"""A test that would take each step takes one in so many."""

_FIRST = 50 if EFFORT == "some" else 300
"""In so many states all faults are tried, whatever the stride is."""
_LONGEST = 1000

Choose = Callable[[int, int], int]
"""Which of so many usual steps, and of so many faults after them, is taken."""


class Graph:
    """A graph of numbered states; the world begins in state 0.

    :ivar ends: states in which nothing happens any more, with the kind of each.
    """

    def __init__(self) -> None:
        self._ways: dict[int, set[tuple[int, bool, tuple[int, ...]]]] = defaultdict(set)
        self.ends: dict[int, Hashable] = {}
        self.executions = 0

    def __str__(self) -> str:
        ways = sum(len(ways) for ways in self._ways.values())
        return f"{len(self.states)} states, {ways} ways between them, {self.executions} executions"

    def add(self, state: int, other: int, is_fault: bool, cost: tuple[int, ...]) -> None:
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


class World(Protocol):
    """The world that is explored.

    :ivar counts: costs of the execution so far, by kind.
    """

    counts: tuple[int, ...]

    def options(self) -> tuple[list[Any], list[Any]]: ...
    def do(self, step: Any) -> None: ...
    def state(self) -> Hashable: ...
    def close(self) -> None: ...


def at(number: int, what: Callable[[], None]) -> Callable[[str], None]:
    """Do something before step `number`, once."""
    steps = iter(range(10_000))
    return lambda call: what() if next(steps) == number else None


def explore(
    make: Callable[[Choose], World], ends: Callable[[Any], Hashable], stride: int = 1, first: int = _FIRST
) -> Graph:
    """Try everything.

    :param make: makes the world at its start; the world asks for each of its choices within a step.
    :param ends: checks a world in which nothing happens any more, and returns the kind of its end.
    :param stride: faults are tried in one of `stride` states, and in each of the first ones.
    """
    trail = _Trail(stride, first)
    while True:
        world, steps_done = make(trail.choose), []
        try:
            while trail.is_new(world):
                steps, faults = world.options()
                if not steps:
                    trail.graph.end(trail.here, ends(world))
                    break
                step = (steps + faults)[trail.choose(len(steps), len(faults))]
                steps_done.append(step)
                world.do(step)
                assert len(steps_done) < _LONGEST, "it does not end"
        except BaseException as error:
            error.add_note("\n".join(f"{one[0].__name__} {one[1:]}" for one in steps_done))
            raise
        finally:
            world.close()
        if not trail.turn():
            return trail.graph


class _Trail:
    """The choices of the present execution and their states. The next execution shares most of them."""

    def __init__(self, stride: int, first: int) -> None:
        self.graph = Graph()
        self.here = -1
        self._stride, self._first = stride, first
        self._numbers: dict[Hashable, int] = {}
        self._chosen: list[int] = []
        self._options: list[int] = []
        self._states: list[tuple[int, int]] = []
        """States that were passed: after how many choices, and the number."""
        self._restart()

    def choose(self, usual: int, faults: int) -> int:
        if self._depth == len(self._chosen):
            disturbed = len(self._numbers) < self._first or len(self._numbers) % self._stride == 0
            self._chosen.append(0)
            self._options.append(usual + (faults if disturbed else 0))
        choice = self._chosen[self._depth]
        self._depth += 1
        self._is_fault |= choice >= usual
        return choice

    def is_new(self, world: World) -> bool:
        """Note the state of the execution; return whether it is new."""
        is_new = True
        if self._passed < len(self._states):
            number = self._states[self._passed][1]
        else:
            state = world.state()
            is_new = state not in self._numbers
            number = self._numbers.setdefault(state, len(self._numbers))
            self._states.append((self._depth, number))
            if self.here >= 0:
                cost = tuple(now - then for now, then in zip(world.counts, self._counts, strict=True))
                self.graph.add(self.here, number, self._is_fault, cost)
        self._passed += 1
        self.here, self._counts, self._is_fault = number, world.counts, False
        return is_new

    def turn(self) -> bool:
        """Take the next choice at the last place that has one left."""
        while self._chosen and self._chosen[-1] + 1 >= self._options[-1]:
            self._chosen.pop()
            self._options.pop()
        if not self._chosen:
            return False
        self._chosen[-1] += 1
        while self._states[-1][0] >= len(self._chosen):
            self._states.pop()
        self._restart()
        return True

    def _restart(self) -> None:
        self.here = -1
        self._depth = self._passed = 0
        self._is_fault = False
        self._counts: tuple[int, ...] = ()
        self.graph.executions += 1
