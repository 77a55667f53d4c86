# SPDX-License-Identifier: Apache-2.0
"""The real commit protocol, with a kill, a freeze or a power loss at every step.

By default, each first crash is paired with one in 23 second crashes; ``RAYBATCH_MODEL=all`` tries all.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from airflow_provider_raybatch.contract.failures import RaybatchError
from airflow_provider_raybatch.contract.submission import new_run_token

from .exploring import EACH, POWER, STRIDE, at, thorough
from .job import ROWS, Killed, World
from .memory import nothing, unthreaded

pytestmark = pytest.mark.slow

FIRST, SECOND, THIRD = (new_run_token(number) for number in (1, 2, 3))
SAME_OR_NEWER = [pytest.param(FIRST, id="same run"), pytest.param(SECOND, id="newer run")]


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    unthreaded(monkeypatch)


def killed(world: World, token: str, step: int, power: bool = False) -> bool:
    """Run a job that is killed before a step; return whether it reached that step."""

    def kill() -> None:
        raise Killed

    world.folder.before = at(step, kill)
    try:
        world.job(token)
    except Killed:
        if power:
            world.folder.lose_power()
            world.copied = 0  # a copy that was not synced is the older one again, until the next job
        return True
    finally:
        world.folder.before = nothing
        world.check()
    return False


def ends_well(world: World, token: str, beside_others: bool = False) -> None:
    """Check that a retry succeeds, that its dataset survives a power loss, and that no row is paid again.

    :param beside_others: whether another job runs, which a power loss would end.
    """
    uri = world.job(token)
    if not beside_others:
        world.folder.lose_power()
    world.check_end()
    assert world.reported[-1] == token
    assert world.job(token) == uri
    assert max(world.paid.values()) < world.jobs


@pytest.mark.parametrize("power", POWER)
@pytest.mark.parametrize("next_token", SAME_OR_NEWER)
def test_every_single_crash(next_token: str, power: bool) -> None:
    for step in range(0, 1000, EACH):
        world = World()
        reached = killed(world, FIRST, step, power)
        ends_well(world, next_token)
        if not reached:
            break
    assert step > 25
    assert world.paid.total() == ROWS


@pytest.mark.parametrize(
    ("next_token", "power"),
    [
        pytest.param(FIRST, False, id="same run-killed", marks=thorough),
        pytest.param(FIRST, True, id="same run-power lost", marks=thorough),
        pytest.param(SECOND, False, id="newer run-killed", marks=thorough),
        pytest.param(SECOND, True, id="newer run-power lost"),
    ],
)
def test_pairs_of_crashes(next_token: str, power: bool) -> None:
    for first in range(0, 1000, EACH):
        for second in range(first % STRIDE, 1000, STRIDE):
            world = World()
            reached = killed(world, FIRST, first, power)
            reached_too = killed(world, next_token, second, power)
            ends_well(world, next_token)
            if not reached_too:
                break
        if not reached:
            break
    assert first > 25


def zombie(world: World, step: int, meanwhile: Callable[[], None]) -> bool:
    """Freeze a job before a step while another acts; return whether it reached that step."""
    frozen: list[int] = []

    def freeze() -> None:
        frozen.append(step)
        world.folder.before = lambda call: None
        meanwhile()
        world.folder.before = lambda call: world.check()

    world.folder.before = at(step, freeze)
    try:
        world.job(FIRST)
    except RaybatchError:
        assert frozen, "an undisturbed job fails"
    world.folder.before = nothing
    world.check()
    return bool(frozen)


@pytest.mark.parametrize("next_token", SAME_OR_NEWER)
def test_every_preemption_of_a_zombie_by_its_successor(next_token: str) -> None:
    for step in range(0, 1000, EACH):
        world = World()
        reached = zombie(world, step, lambda world=world: ends_well(world, next_token, True))
        ends_well(world, next_token)
        if not reached:
            break
    assert step > 25


@pytest.mark.parametrize(
    "next_token",
    [pytest.param(FIRST, id="same run"), pytest.param(SECOND, id="newer run", marks=thorough)],
)
def test_preemptions_by_a_successor_that_is_killed(next_token: str) -> None:
    for step in range(0, 1000, EACH):
        for crash in range(step % STRIDE, 1000, STRIDE):
            world, came = World(), []
            reached = zombie(
                world, step, lambda w=world, c=crash, came=came: came.append(killed(w, next_token, c))
            )
            ends_well(world, next_token)
            if came != [True]:
                break
        if not reached:
            break
    assert step > 25


def test_every_preemption_of_a_cleared_run_by_two_newer_ones() -> None:
    for step in range(0, 1000, EACH):
        world = World()

        def meanwhile(world: World = world) -> None:
            ends_well(world, SECOND, beside_others=True)
            ends_well(world, THIRD, beside_others=True)

        reached = zombie(world, step, meanwhile)
        assert world.reported[-1] == (THIRD if reached else FIRST) or FIRST in world.reported
        ends_well(world, THIRD)
        if not reached:
            break
    assert step > 25
