# SPDX-License-Identifier: Apache-2.0
"""Rows that a replica gives back, since another one would be done before it."""

from __future__ import annotations

import numpy as np
import pytest

from airflow_provider_raybatch.job.scheduling.messages import MOST_WAITING, Assignment, Begun, PullRequest
from airflow_provider_raybatch.job.scheduling.queue import PullQueue
from airflow_provider_raybatch.job.scheduling.row_index import RowIndex

from .world import World


@pytest.mark.parametrize(
    ("rows", "slots", "at_once", "count", "ask_below"),
    [
        (15, 10, 10, 5, 7),  # what the first one can't begin
        (20, 40, 4, 10, 4),  # it has slots for all of its rows, but lets four in at once: half of all
    ],
)
def test_what_a_replica_does_not_begin_is_for_others(
    rows: int, slots: int, at_once: int, count: int, ask_below: int
) -> None:
    world = World(RowIndex([rows], [1]))
    first = world.join(slots, at_once)
    assert len(world.pull(first).rows) == rows
    second = world.join(slots, at_once=10)
    assert len(world.pull(second).rows) == 0
    assert world.queue.wants(first)
    assert world.pull(first).give_back == count
    world.give_back(first, count)
    assignment = world.pull(second)
    assert assignment.rows.tolist() == [*range(rows)][-count:]
    assert assignment.borrow == {0}
    assert world.pull(first).ask_below == ask_below  # where it could begin more


def test_another_gives_back_before_a_replica_has_begun_all() -> None:
    """It hears of that a second later, and would have let the rows in by then."""
    queue = answering({"slow": 50, "quick": 150}, seconds=3)
    assert pull(queue, "quick", 4.0, 600).ask_below == 100 + 225
    assert queue.wants("slow")
    half = ((800 - 150) + (800 - 600)) // 2  # of what is left, as far as is known
    assert pull(queue, "slow", 4.2, 210).give_back == half - (800 - 600)


def test_no_replica_gives_back_twice_what_another_lacks() -> None:
    """It waits until that is there, or should have been."""
    queue = answering({"slow": 50, "quick": 150}, seconds=4)
    assert pull(queue, "slow", 4.1, 205).give_back > 0
    pull(queue, "quick", 4.3, 645)
    assert not queue.wants("slow")
    pull(queue, "quick", 5.6, 795)
    assert queue.wants("slow")


def test_replica_may_ask_again_once_rows_have_come() -> None:
    queue = answering({"slow": 50, "quick": 150}, seconds=4)
    back = pull(queue, "slow", 4.1, 205).give_back
    queue.give_back("slow", np.arange(back))
    assert len(pull(queue, "quick", 4.3, 645).rows) == back
    pull(queue, "slow", 4.4, 210)
    pull(queue, "quick", 4.5, 645 + back)
    assert queue.wants("slow")


def test_two_that_lack_rows_get_no_more_than_one_has_to_give() -> None:
    queue = PullQueue(RowIndex([24], [1]))
    queue.join("rich", 10, 0.0)
    assert len(queue.pull("rich", 0.0).rows) == 24
    for name in ("second", "third"):
        queue.join(name, 10, 0.0)
        queue.pull(name, 0.0)
    assert queue.pull("rich", 0.0).give_back == 24 - 10


def test_none_gives_rows_to_one_that_runs_suspected_rows() -> None:
    queue = PullQueue(RowIndex([17], [1]))
    queue.join("killed", 4, 0.0)
    killer = queue.pull("killed", 0.0).rows[:1]
    queue.join("rich", 4, 0.0)
    assert len(queue.pull("rich", 0.0).rows) == 1
    queue.lost("killed", 0.0, engine_died=True, begun=Begun(killer))
    queue.pull("rich", 0.0)
    queue.join("tester", 4, 0.0)
    assert queue.pull("tester", 0.0).isolated
    assert queue.free.count == 0
    queue.pull("tester", 0.1)
    assert not queue.wants("rich")


def test_one_that_answered_none_for_a_while_has_a_pace() -> None:
    """Its first answers came after a minute, and it writes them ten seconds later."""
    queue = PullQueue(RowIndex([24], [1]))
    for name in ("first", "second"):
        queue.join(name, 4, 0.0)
        queue.pull(name, 0.0)
    queue.pull("first", 60.0, PullRequest(4))
    queue.pull("first", 70.0, PullRequest(4, finished=np.arange(4)))
    queue.pull("second", 73.0, PullRequest(4))
    assert queue.wants("first")


def test_one_that_hangs_gives_back_what_it_has_not_begun() -> None:
    """By its pace it should have answered all by now, but it has not said so."""
    queue = answering({"slow": 50, "quick": 150}, seconds=3)
    pull(queue, "quick", 20.0, 800)
    assert pull(queue, "slow", 20.1, 150).give_back == 100  # for which the quick one has room


def test_replica_asks_seldom_where_none_could_give_back() -> None:
    queue = PullQueue(RowIndex([200], [1]))
    for name in ("first", "second"):
        queue.join(name, 100, 0.0)
    for name in ("first", "second"):
        assert len(queue.pull(name, 0.0).rows) == 100
    for second in range(1, 5):
        assignments = [
            queue.pull(name, float(second), PullRequest(10 * second)) for name in ("first", "second")
        ]
    assert queue.free.count == 0
    assert all(
        assignment.ask_below <= 70 for assignment in assignments
    )  # half of what is left, as far as is known


def test_the_pace_is_that_of_the_last_minute() -> None:
    queue = PullQueue(RowIndex([10_000], [1]))
    queue.join("one", 100, 0.0)
    for second in range(60):
        queue.pull("one", float(second), PullRequest(10 * second + 30 * max(0, second - 30)))
    assert queue._replicas["one"].load.pace == pytest.approx(40, rel=0.2)


def pull(queue: PullQueue, name: str, now: float, answered: int) -> Assignment:
    return queue.pull(name, now, PullRequest(answered, at_once=100))


def answering(paces: dict[str, int], seconds: int) -> PullQueue:
    """Return the queue of replicas with 800 rows each, a hundred of them in their engines.

    :param paces: rows a second.
    :param seconds: for which they have answered.
    """
    queue = PullQueue(RowIndex([800 * len(paces)], [1]))
    for name in paces:
        queue.join(name, 200, 0.0)
    for second in range(seconds + 1):
        for name, pace in paces.items():
            assert pull(queue, name, float(second), pace * second).give_back == 0
    assert queue.free.count == 0
    return queue


@pytest.mark.parametrize("at_once", [100, 50])
def test_none_is_made_to_give_back_more_than_another_would_get(at_once: int) -> None:
    """Else the rest would go back and forth."""
    queue = PullQueue(RowIndex([300], [1]))
    queue.join("first", 400, 0.0)
    assert len(queue.pull("first", 0.0).rows) == 300
    queue.pull("first", 0.0, PullRequest(at_once=20))
    queue.join("second", 100, 0.0)
    queue.pull("second", 0.0, PullRequest(at_once=at_once))
    back = queue.pull("first", 1.0, PullRequest(at_once=20)).give_back
    queue.give_back("first", np.arange(300 - back, 300))
    assert back == 300 * 100 // (400 + 100)
    assert len(queue.pull("second", 1.0).rows) == back


def test_what_waits_for_another_rows_answer_is_not_for_others() -> None:
    """However many wait; they can't be given back, so another replica asks one that has some."""
    queue = PullQueue(RowIndex([400], [1]))
    queue.join("waits", 4, 0.0)
    held = 0
    for second in range(1, 40):  # it may hold so many times its slots that all of them wait
        held += len(queue.pull("waits", float(second), PullRequest(waiting=held)).rows)
    assert held > MOST_WAITING * 4
    queue.pull("waits", 50.0, PullRequest(waiting=held))
    assert queue._replicas.ahead == {}
