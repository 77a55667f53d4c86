# SPDX-License-Identifier: Apache-2.0
"""The response store, with a kill, a freeze or a power loss at every step of add, compaction and look-up.

By default, each first crash is paired with one in 23 second crashes, and one preemption in twelve is tried;
``RAYBATCH_MODEL=all`` tries all.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .exploring import EACH, POWER, STRIDE, at, thorough
from .job import Killed
from .memory import nothing
from .store import Act, World, one_by_one, shelf

pytestmark = pytest.mark.slow


def add(world: World) -> None:
    """Add responses, one of them to a stored request."""
    world.add("new", [3, 4, 5])


def add_another(world: World) -> None:
    world.add("other", [5, 6])


def compact(world: World) -> None:
    world.compact()


def read(world: World) -> None:
    world.read_all()


SOME = (STRIDE + 1) // 2
ACTS = [add, add_another, compact, read]


@pytest.fixture(autouse=True)
def small() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        one_by_one(patch)
        yield


def killed(world: World, act: Act, step: int, power: bool = False) -> bool:
    """Kill an act before a step; return whether it reached that step."""

    def kill() -> None:
        raise Killed

    world.disk.before = at(step, kill)
    try:
        act(world)
    except Killed:
        if power:
            world.disk.lose_power()
        return True
    finally:
        world.disk.before = nothing
        world.check()
    return False


def frozen(world: World, act: Act, step: int, meanwhile: Act) -> bool:
    """Freeze `act` before a step while another acts; return whether it reached that step."""
    came = []

    def freeze() -> None:
        came.append(step)
        with world.disk.unstepped():
            meanwhile(world)

    world.disk.before = at(step, freeze)
    act(world)
    world.disk.before = nothing
    return bool(came)


@pytest.mark.parametrize("power", POWER)
@pytest.mark.parametrize("act", [add, compact])
def test_every_single_crash(act: Act, power: bool) -> None:
    for step in range(0, 1000, EACH):
        world = shelf()
        reached = killed(world, act, step, power)
        world.check_end()
        if not reached:
            break
    assert step > 10


@pytest.mark.parametrize(
    "power", [pytest.param(False, id="killed", marks=thorough), pytest.param(True, id="power lost")]
)
@pytest.mark.parametrize(
    "acts",
    [(add, add), (compact, compact), (add, compact)],
    ids=lambda acts: " and ".join(act.__name__ for act in acts),
)
def test_pairs_of_crashes(acts: tuple[Act, Act], power: bool) -> None:
    for first in range(0, 1000, EACH):
        for second in range(first % STRIDE, 1000, STRIDE):
            world = shelf()
            reached = killed(world, acts[0], first, power)
            reached_too = killed(world, acts[1], second, power)
            add(world)
            world.disk.lose_power()
            world.check_end()
            if not reached_too:
                break
        if not reached:
            break
    assert first > 10


@pytest.mark.parametrize("meanwhile", ACTS)
@pytest.mark.parametrize("act", ACTS)
def test_frozen_at_every_step_while_another_acts(act: Act, meanwhile: Act) -> None:
    for step in range(ACTS.index(meanwhile) % SOME, 1000, SOME):
        world = shelf()
        reached = frozen(world, act, step, meanwhile)
        world.check_end()
        if not reached:
            break
    assert step > 10


@pytest.mark.parametrize("pause", [pytest.param(0, marks=thorough), 100_000])
def test_repeated_add_beside_a_sweep_of_its_first_try(pause: float) -> None:
    for crash in range(0, 1000, EACH):
        for step in range(crash % SOME, 1000, SOME):
            world = shelf()
            reached = killed(world, add, crash)
            world.later(pause)
            reached_too = frozen(world, compact, step, add)
            world.check_end()
            if not reached_too:
                break
        if not reached:
            break
    assert crash > 10
