# SPDX-License-Identifier: Apache-2.0
"""One submission, whatever happens at any step: real operator, trigger and client in a model of the rest.

By default, a sample of steps is tried for each event; ``RAYBATCH_MODEL=all`` tries all. Time is simulated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count, product
from typing import Any, TypeVar

import pytest
from obstore.exceptions import GenericError

from airflow_provider_raybatch.contract.failures import FailureClass
from airflow_provider_raybatch.storage import errors

from .events import EVENTS
from .exploring import EACH, EFFORT, thorough
from .process import Wrong
from .stand_ins import modelled
from .task import World

ALL = EFFORT == "all"
MODES = [pytest.param(False, id="blocking"), pytest.param(True, id="deferrable")]
CLUSTERS: dict[str, dict[str, Any]] = {
    "all well": {},
    "its first job fails": {"failures": (FailureClass.ENGINE_DEAD,)},
    "a clear drops the record": {"forgetful": True},
}
STEPS = 70
"""More than a task has that one event disturbs, but for the longest of them."""

Maker = Callable[..., World]
Case = TypeVar("Case")


@pytest.fixture(scope="module")
def make() -> Iterator[Maker]:
    with modelled() as maker:
        yield maker


def sample(cases: Sequence[Case], one_in: int, seed: str) -> Sequence[Case]:
    """Return one case in `one_in`, others for each `seed`; or all."""
    return cases if ALL else cases[sum(map(ord, seed)) % one_in :: one_in]


def trouble(world: World, events: dict[int, str]) -> set[int]:
    """Let events happen right before steps; return which of these steps were reached."""
    steps, reached = count(), set()

    def before(call: str) -> str | None:
        step = next(steps)
        if step not in events:
            return None
        reached.add(step)
        return EVENTS[events[step]](world)

    world.before = before
    world.is_alone = len(events) == 1
    world.was_informed = "marked failed" in events.values()
    try:
        world.ends_well(clear=len(events) == 1)
    except (Wrong, Exception) as error:
        raise AssertionError("\n".join([f"{events}: {error}", *world.log_lines])) from error
    return reached


def test_threads_of_other_tests_do_not_change_a_world(make: Maker) -> None:
    """Some sleep, or try again after a pause with jitter, for as long as the process lives."""
    undisturbed = make(deferrable=False)
    undisturbed.ends_well()
    world = make(deferrable=False)
    before, answers = world.clock.time(), [False, True]

    def answer() -> None:
        if answers.pop():
            raise GenericError("reset by peer")

    with ThreadPoolExecutor(1) as others:
        others.submit(errors.with_retries, answer, "read", "s3://b/k").result(60)
    assert (world.clock.time(), answers) == (before, [])
    world.ends_well()
    assert (world.steps, world.clock.time()) == (undisturbed.steps, undisturbed.clock.time())


@pytest.mark.parametrize("deferrable", MODES)
@pytest.mark.parametrize(
    "cluster", [one if not fields else pytest.param(one, marks=thorough) for one, fields in CLUSTERS.items()]
)
@pytest.mark.parametrize("event", EVENTS)
def test_every_single_event(make: Maker, event: str, cluster: str, deferrable: bool) -> None:
    some = sample(range(STEPS), 9, event + cluster)
    reached = [trouble(make(deferrable, **CLUSTERS[cluster]), {step: event}) for step in some]
    assert len(list(filter(None, reached))) > len(some) / 3


@pytest.mark.parametrize(
    "deferrable", [pytest.param(False, id="blocking", marks=thorough), pytest.param(True, id="deferrable")]
)
@pytest.mark.parametrize("first", EVENTS)
def test_pairs_of_events(make: Maker, first: str, deferrable: bool) -> None:
    pairs = list(product(range(STEPS), range(1, STEPS), EVENTS))
    some = sample(pairs, 1997, first)
    came = [trouble(make(deferrable), {step: first, step + later: second}) for step, later, second in some]
    assert max(map(len, came)) == 2


@pytest.mark.parametrize(
    ("cleared", "deferrable"),
    [
        pytest.param(False, False, id="retried-blocking", marks=thorough),
        pytest.param(False, True, id="retried-deferrable"),
        pytest.param(True, False, id="cleared-blocking"),
        pytest.param(True, True, id="cleared-deferrable", marks=thorough),
    ],
)
def test_a_zombie_beside_its_successor(make: Maker, cleared: bool, deferrable: bool) -> None:
    """A process freezes before a step, and continues before a step of its successor, or after its end."""
    some = sample(list(product(range(STEPS - 10), range(STEPS))), 29 * EACH, "")
    frozen = [zombie(make(deferrable), step, later, cleared) for step, later in some]
    assert sum(frozen) > len(some) / 3


def zombie(world: World, step: int, later: int, cleared: bool) -> bool:
    steps, frozen = count(), []

    def before(call: str) -> str | None:
        number = next(steps)
        if number == step:
            frozen.append(number)
            return world.freeze(cleared)
        if number == step + 1 + later:
            world.thaw()
        return None

    world.may_freeze = True
    world.before = before
    try:
        world.play()
        world.thaw()
        world.ends_well()
    except (Wrong, Exception) as error:
        world.thaw(go_on=False)
        raise AssertionError("\n".join([f"{step}, {later}: {error}", *world.log_lines])) from error
    return bool(frozen)
