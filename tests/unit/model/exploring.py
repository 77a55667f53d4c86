# SPDX-License-Identifier: Apache-2.0
"""All ways in which a world of steps can go, each state once: depth first, each from the start."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import pytest

POWER = [pytest.param(False, id="killed"), pytest.param(True, id="power lost")]
STRIDE = 1 if os.environ.get("RAYBATCH_MODEL") == "all" else 23

_FIRST = 300


class Steps(Protocol):
    """A world."""

    def options(self) -> tuple[list[Any], list[Any]]: ...
    def do(self, step: Any) -> None: ...
    def state(self) -> Any: ...
    def close(self) -> None: ...


@dataclass
class Explored:
    """How much was done."""

    executions: int = 0
    states: int = 0


def at(number: int, what: Callable[[], None]) -> Callable[[str], None]:
    """Do something before step `number`, once."""
    steps = iter(range(10_000))
    return lambda call: what() if next(steps) == number else None


def explore(
    make: Callable[[], Steps], ends: Callable[[Any], None], stride: int = 1, most: int = 400
) -> Explored:
    """Try everything.

    :param ends: checks a world in which nothing happens any more.
    :param stride: what comes from outside is tried in one state of so many, but in the first 300 always.
    :param most: steps of the longest execution.
    """
    done, seen = Explored(), set[int]()
    path: list[int] = []
    branches: list[int] = []
    while True:
        world, depth = make(), 0
        done.executions += 1
        names = []
        try:
            while True:
                steps, faults = world.options()
                if depth == len(path):
                    if not steps:
                        ends(world)
                        break
                    key = hash(world.state())
                    if key in seen:
                        break
                    seen.add(key)
                    path.append(0)
                    disturbed = len(seen) < _FIRST or len(seen) % stride == 0
                    branches.append(len(steps) + (len(faults) if disturbed else 0))
                step = (steps + faults)[path[depth]]
                names.append(step)
                world.do(step)
                depth += 1
                assert depth < most, "it does not end"
        except BaseException as error:
            error.add_note("\n".join(f"{one[0].__name__} {one[1:]}" for one in names))
            raise
        finally:
            world.close()
        while path and path[-1] + 1 >= branches[-1]:
            path.pop()
            branches.pop()
        if not path:
            done.states = len(seen)
            return done
        path[-1] += 1
