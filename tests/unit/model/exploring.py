# SPDX-License-Identifier: Apache-2.0
"""Explores all executions of a world of steps, each state once: depth first, each from the start."""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable
from typing import Any, Protocol

import pytest

from .graph import Graph

POWER = [pytest.param(False, id="killed"), pytest.param(True, id="power lost")]
STRIDE = 1 if os.environ.get("RAYBATCH_MODEL") == "all" else 23

_FIRST = 300
"""In so many states all faults are tried, whatever the stride is."""
_LONGEST = 1000

Choose = Callable[[int, int], int]
"""Which of so many usual steps, and of so many faults after them, is taken."""


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


def explore(make: Callable[[Choose], World], ends: Callable[[Any], Hashable], stride: int = 1) -> Graph:
    """Try everything.

    :param make: makes the world at its start; the world asks for each of its choices within a step.
    :param ends: checks a world in which nothing happens any more, and returns the kind of its end.
    :param stride: faults are tried in one of `stride` states, and in each of the first 300.
    """
    trail = _Trail(stride)
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

    def __init__(self, stride: int) -> None:
        self.graph = Graph()
        self.here = -1
        self._stride = stride
        self._numbers: dict[Hashable, int] = {}
        self._chosen: list[int] = []
        self._options: list[int] = []
        self._states: list[tuple[int, int]] = []
        """States that were passed: after how many choices, and the number."""
        self._restart()

    def choose(self, usual: int, faults: int) -> int:
        if self._depth == len(self._chosen):
            disturbed = len(self._numbers) < _FIRST or len(self._numbers) % self._stride == 0
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
