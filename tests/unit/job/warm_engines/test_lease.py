# SPDX-License-Identifier: Apache-2.0
"""Who has a kept engine, and for how long; the clock is the test's."""

from __future__ import annotations

import pytest

from airflow_provider_raybatch.job.warm_engines.lease import (
    KEPT_FOR_ITS_LIKE,
    LONGEST_RETURN,
    LONGEST_START,
    SILENT,
    UNUSED,
    EngineLease,
    GivenAwayError,
    Holder,
)

FIRST, SECOND = Holder("actor 1", "process 1"), Holder("actor 2", "process 2")
OWN, OTHER = "the job that made it", "another job"


@pytest.fixture
def tenancy() -> EngineLease:
    return EngineLease(100.0, OWN)


def used(tenancy: EngineLease, now: float = 100.0) -> EngineLease:
    assert tenancy.take(FIRST, OWN, now)
    return tenancy


def rested(tenancy: EngineLease, seconds: float = 60.0, now: float = 100.0) -> EngineLease:
    used(tenancy, now).give_back(FIRST, seconds, now)
    tenancy.has_come_to_rest(now)
    return tenancy


def test_one_user_at_a_time(tenancy: EngineLease) -> None:
    used(tenancy)
    assert tenancy.take(FIRST, OWN, 101.0)
    assert not tenancy.take(SECOND, OWN, 101.0)
    tenancy.give_back(FIRST, 60.0, 101.0)
    assert not tenancy.take(SECOND, OWN, 101.0)  # something of the first is still in it
    tenancy.has_come_to_rest(102.0)
    assert tenancy.take(SECOND, OWN, 103.0)
    for call in (tenancy.hear, lambda user, now: tenancy.give_back(user, 60.0, now)):
        with pytest.raises(GivenAwayError):
            call(FIRST, 103.0)


def test_a_new_one_waits_for_its_first_user(tenancy: EngineLease) -> None:
    assert tenancy.verdict(100.0 + UNUSED - 1, is_wanted=False) == "stay"
    assert tenancy.verdict(100.0 + UNUSED, is_wanted=False) == "end"


def test_a_new_one_is_its_makers_alone(tenancy: EngineLease) -> None:
    """That job ends it without asking when it needs it no more."""
    assert tenancy.reserved_for == OWN
    assert not tenancy.take(SECOND, OTHER, 101.0)
    rested(tenancy, now=102.0)
    assert tenancy.reserved_for == ""
    assert tenancy.take(SECOND, OTHER, 103.0)


def test_one_that_is_declined_waits_on(tenancy: EngineLease) -> None:
    rested(tenancy, 60.0, now=200.0)
    assert tenancy.take(SECOND, OTHER, 210.0)
    tenancy.decline(FIRST)
    assert not tenancy.is_free
    tenancy.decline(SECOND)
    assert tenancy.is_free
    assert tenancy.rests(220.0) == (20.0, 40.0)


def test_it_rests_for_its_time(tenancy: EngineLease) -> None:
    rested(tenancy, 60.0, now=200.0)
    assert tenancy.rests(210.0) == (10.0, 50.0)
    assert tenancy.verdict(259.0, is_wanted=False) == "stay"
    assert tenancy.verdict(260.0, is_wanted=False) == "end"


def test_it_makes_room_after_a_while_of_rest(tenancy: EngineLease) -> None:
    rested(tenancy)
    assert tenancy.verdict(100.0 + KEPT_FOR_ITS_LIKE - 1, is_wanted=True) == "stay"
    assert tenancy.verdict(100.0 + KEPT_FOR_ITS_LIKE, is_wanted=True) == "end"
    assert used(tenancy).verdict(100.0 + KEPT_FOR_ITS_LIKE, is_wanted=True) == "stay"


def test_a_silent_user_is_dead(tenancy: EngineLease) -> None:
    used(tenancy).hear(FIRST, 110.0)
    assert tenancy.verdict(110.0 + SILENT, is_wanted=False) == "stay"
    assert tenancy.verdict(111.0 + SILENT, is_wanted=False) == "kill"


def test_a_user_that_waits_for_it_is_not_silent(tenancy: EngineLease) -> None:
    used(tenancy).begin_wait(FIRST, 100.0)
    assert tenancy.verdict(100.0 + LONGEST_START, is_wanted=False) == "stay"
    assert tenancy.verdict(101.0 + LONGEST_START, is_wanted=False) == "kill"
    tenancy.end_wait(FIRST, 150.0)
    assert tenancy.verdict(151.0 + SILENT, is_wanted=False) == "kill"


def test_the_wait_of_one_user_is_not_the_next_ones(tenancy: EngineLease) -> None:
    used(tenancy).begin_wait(FIRST, 100.0)
    tenancy.give_back(FIRST, 60.0, 100.0)
    tenancy.has_come_to_rest(100.0)
    assert tenancy.take(SECOND, OWN, 100.0)
    tenancy.end_wait(FIRST, 100.0)
    assert tenancy.verdict(101.0 + SILENT, is_wanted=False) == "kill"


def test_a_return_that_hangs_is_ended(tenancy: EngineLease) -> None:
    used(tenancy).give_back(FIRST, 3600.0, 100.0)
    assert tenancy.verdict(100.0 + LONGEST_RETURN, is_wanted=True) == "stay"
    assert tenancy.verdict(101.0 + LONGEST_RETURN, is_wanted=False) == "kill"


def test_one_that_is_opened_for_the_next_has_longer(tenancy: EngineLease) -> None:
    used(tenancy).give_back(FIRST, 3600.0, 100.0, LONGEST_START)
    assert tenancy.verdict(100.0 + LONGEST_START, is_wanted=True) == "stay"
    assert tenancy.verdict(101.0 + LONGEST_START, is_wanted=False) == "kill"
    tenancy.has_come_to_rest(400.0)
    assert tenancy.take(SECOND, OTHER, 500.0)
    tenancy.give_back(SECOND, 3600.0, 500.0)
    assert tenancy.verdict(501.0 + LONGEST_RETURN, is_wanted=False) == "kill"


def test_what_has_ended_is_nobodys(tenancy: EngineLease) -> None:
    assert tenancy.end()
    assert not tenancy.end()
    assert not tenancy.take(FIRST, OWN, 100.0)
    tenancy.has_come_to_rest(100.0)
    assert not tenancy.is_free
    used_one = used(EngineLease(100.0, OWN))
    assert not used_one.end()
    assert not used_one.is_of(FIRST)
