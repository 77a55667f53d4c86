# SPDX-License-Identifier: Apache-2.0
"""The explorer finds the known flaws of small worlds."""

from __future__ import annotations

import graphlib
import itertools
import signal
import time
from collections.abc import Hashable
from functools import partial
from typing import Any

import pytest

from .clock import cpu_limit
from .exploring import Choose, explore

CHAIN = {"a": ["b", "c"], "b": ["d"], "c": ["b"], "d": []}


class Walk:
    """A world of places; steps and faults lead from place to place, and each step costs one."""

    def __init__(self, steps: dict[str, list[str]], faults: dict[str, list[str]], choose: Choose) -> None:
        self.steps, self.faults = steps, faults
        self.place = "a"
        self.counts = (0,)

    def options(self) -> tuple[list[Any], list[Any]]:
        ways = (
            [(self.go, place) for place in some.get(self.place, [])] for some in (self.steps, self.faults)
        )
        steps, faults = ways
        return steps, faults

    def go(self, place: str) -> None:
        self.place = place
        self.counts = (self.counts[0] + 1,)

    def do(self, step: Any) -> None:
        step[0](*step[1:])

    def state(self) -> Hashable:
        return self.place

    def close(self) -> None:
        pass


def walk(steps: dict[str, list[str]], faults: dict[str, list[str]] | None = None) -> Any:
    return explore(partial(Walk, steps, faults or {}), lambda world: world.place)


def test_all_ways_are_taken() -> None:
    graph = walk(CHAIN)
    assert len(graph.states) == 4
    assert not graph.stuck()
    assert graph.most(0) == {"d": 3}


def test_a_place_that_only_a_fault_leads_out_of_is_stuck() -> None:
    graph = walk({**CHAIN, "c": ["c"]}, {"c": ["d"]})
    assert len(graph.stuck()) == 1


def test_idle_steps_cost_nothing() -> None:
    assert walk({**CHAIN, "b": ["b", "d"]}).most(0) == {"d": 3}


def test_a_way_in_a_circle_is_found() -> None:
    with pytest.raises(graphlib.CycleError):
        walk({**CHAIN, "b": ["c", "d"]}).most(0)


def test_what_computes_too_long_fails() -> None:
    with pytest.raises(pytest.fail.Exception, match=r"it has computed for 0\.1 s"), cpu_limit(0.1):
        for _ in itertools.count():
            pass


def test_what_waits_does_not_count() -> None:
    with cpu_limit(1.0):  # of a process that other work may slow down
        time.sleep(1.1)
        assert signal.getitimer(signal.ITIMER_PROF)[0] > 0
