# SPDX-License-Identifier: Apache-2.0
"""Who has a warm engine, and for how long; the clock is the test's."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from airflow_provider_raybatch.job.warm_engines.lease import (
    LONGEST_RETURN,
    LONGEST_START,
    SHORTEST_REST,
    SILENT,
    UNUSED,
    EngineLease,
    GivenAwayError,
    Holder,
)

FIRST, SECOND = Holder("actor 1", "process 1"), Holder("actor 2", "process 2")
OWN, OTHER = "the job that made it", "another job"


@pytest.fixture
def lease() -> EngineLease:
    return EngineLease(100.0, OWN)


def used(lease: EngineLease, now: float = 100.0) -> EngineLease:
    assert lease.take(FIRST, OWN, now)
    return lease


def returned(lease: EngineLease, now: float = 100.0) -> EngineLease:
    used(lease, now).give_back(FIRST, 60.0, now)
    return lease


def rested(lease: EngineLease, now: float = 100.0) -> EngineLease:
    returned(lease, now).set_idle(now)
    return lease


@pytest.mark.parametrize(
    ("comes_to", "is_wanted", "seconds", "verdict"),
    [
        pytest.param(lambda lease: lease, False, UNUSED, "end", id="never taken"),
        pytest.param(rested, False, 60.0, "end", id="its time is over"),
        pytest.param(rested, True, SHORTEST_REST, "end", id="makes room"),
        pytest.param(used, True, SILENT + 1, "kill", id="a silent holder is dead"),
        pytest.param(returned, True, LONGEST_RETURN + 1, "kill", id="its return hangs"),
    ],
)
def test_each_phase_has_its_longest(
    lease: EngineLease, comes_to: Callable[..., EngineLease], is_wanted: bool, seconds: float, verdict: str
) -> None:
    comes_to(lease)
    assert lease.verdict(100.0 + seconds - 1, is_wanted) == "stay"
    assert lease.verdict(100.0 + seconds, is_wanted) == verdict


def test_one_holder_at_a_time(lease: EngineLease) -> None:
    used(lease)
    assert lease.take(FIRST, OWN, 101.0)
    assert not lease.take(SECOND, OWN, 101.0)
    lease.give_back(FIRST, 60.0, 101.0)
    assert not lease.take(SECOND, OWN, 101.0)  # something of the first is still in it
    lease.set_idle(102.0)
    assert lease.take(SECOND, OWN, 103.0)
    for call in (lease.hear, lambda holder, now: lease.give_back(holder, 60.0, now)):
        with pytest.raises(GivenAwayError):
            call(FIRST, 103.0)


def test_a_new_one_is_its_makers_alone(lease: EngineLease) -> None:
    """That job ends it without asking when it needs it no more."""
    assert lease.reserved_for == OWN
    assert not lease.take(SECOND, OTHER, 101.0)
    rested(lease, now=102.0)
    assert lease.reserved_for == ""
    assert lease.take(SECOND, OTHER, 103.0)


def test_one_that_is_declined_waits_on(lease: EngineLease) -> None:
    rested(lease, now=200.0)
    assert lease.take(SECOND, OTHER, 210.0)
    lease.decline(FIRST)
    assert not lease.is_free
    lease.decline(SECOND)
    assert lease.is_free
    assert lease.rests(220.0) == (20.0, 40.0)


def test_a_holder_that_waits_for_it_is_not_silent(lease: EngineLease) -> None:
    used(lease).begin_wait(FIRST, 100.0)
    assert lease.verdict(100.0 + LONGEST_START, is_wanted=False) == "stay"
    assert lease.verdict(101.0 + LONGEST_START, is_wanted=False) == "kill"
    lease.end_wait(FIRST, 150.0)
    lease.hear(FIRST, 155.0)
    assert lease.verdict(155.0 + SILENT, is_wanted=False) == "stay"
    assert lease.verdict(156.0 + SILENT, is_wanted=False) == "kill"


def test_the_wait_of_one_holder_is_not_the_next_ones(lease: EngineLease) -> None:
    used(lease).begin_wait(FIRST, 100.0)
    rested(lease)
    assert lease.take(SECOND, OWN, 100.0)
    lease.end_wait(FIRST, 100.0)
    assert lease.verdict(101.0 + SILENT, is_wanted=False) == "kill"


def test_one_that_is_opened_for_the_next_has_longer(lease: EngineLease) -> None:
    used(lease).give_back(FIRST, 3600.0, 100.0, LONGEST_START)
    assert lease.verdict(100.0 + LONGEST_START, is_wanted=True) == "stay"
    assert lease.verdict(101.0 + LONGEST_START, is_wanted=False) == "kill"
    lease.set_idle(400.0)
    assert lease.take(SECOND, OTHER, 500.0)
    lease.give_back(SECOND, 3600.0, 500.0)
    assert lease.verdict(501.0 + LONGEST_RETURN, is_wanted=False) == "kill"


def test_an_ended_engine_is_not_taken(lease: EngineLease) -> None:
    lease.end()
    assert not lease.take(FIRST, OWN, 100.0)
    lease.set_idle(100.0)
    assert not lease.is_free
    used_one = used(EngineLease(100.0, OWN))
    used_one.end()
    assert not used_one.is_of(FIRST)
