# SPDX-License-Identifier: Apache-2.0
"""The pull queue loses no row and gives none twice, whichever replica joins, dies, leaves or gives back."""

from __future__ import annotations

import copy
import math
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_raybatch.job.scheduling.messages import Begun, PullRequest, StaleReplicaError
from airflow_provider_raybatch.job.scheduling.queue import PullQueue
from airflow_provider_raybatch.job.scheduling.row_index import RowIndex

from .world import World

STEPS = ("join", "pull", "pull", "pull", "fetch", "give back", "lose", "lose silently", "leave")


@st.composite
def inputs(draw: st.DrawFn) -> RowIndex:
    rows = draw(st.lists(st.integers(1, 40), min_size=1, max_size=12))
    total = sum(rows)
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    done = random.random(total) < 0.4 if draw(st.booleans()) else None
    return RowIndex(rows, [100 + 7 * count for count in rows], done, in_order=draw(st.booleans()))


@settings(max_examples=50, deadline=None)
@given(pieces=inputs(), data=st.data())
def test_rows_are_given_once(pieces: RowIndex, data: st.DataObject) -> None:
    """After any steps, each row is written, free, suspected, or held by one replica; all get written.

    Each replica finds the content of its rows, and in the end the object store is empty.
    """
    world = World(pieces)
    for _ in range(data.draw(st.integers(0, 40), "steps")):
        step = data.draw(st.sampled_from(STEPS), "step")
        world.now += data.draw(st.sampled_from([0.0, 1.0, 6.0, 30.0]), "seconds")
        if step == "join" or not world.members:
            slots = data.draw(st.integers(1, 20), "slots")
            world.join(slots, data.draw(st.integers(1, slots), "at once"))
            continue
        name = data.draw(st.sampled_from(sorted(world.members)), "replica")
        if step == "pull":
            written = st.just(0) | st.integers(0, len(world.members[name].holds))
            told = world.pull(name, data.draw(written, "written")).give_back
            if told and data.draw(st.booleans(), "does"):
                world.give_back(name, told)
        elif step == "give back":
            world.give_back(name, data.draw(st.integers(0, 20), "rows"))
        elif step == "fetch":
            world.fetch(name)
        elif step == "leave":
            world.leave(name)
        else:
            world.lose(name, step == "lose", knows_begun=data.draw(st.booleans(), "knows_begun"))
        world.check()
        check_another(world)
    name = data.draw(st.sampled_from([*sorted(world.members), world.join(5)]), "the last one")
    for other in sorted(world.members):
        if other != name:
            world.lose(other, engine_died=False, knows_begun=False)
    for _ in range(4 * int(pieces.left.sum()) + 4):
        world.now += 1
        world.pull(name, len(world.members[name].holds))
        world.fetch(name)
        if world.queue.is_finished:
            break
    expected = {row for piece in range(len(pieces)) for row in pieces.rows(piece).tolist()}
    assert world.queue.is_finished
    assert world.written.keys() == expected


def check_another(world: World) -> None:
    """One more replica gets rows, now or from one that is told to give some back, only where that is said."""
    queue = copy.deepcopy(world.queue)
    queue.join("another", 10, world.now)
    assignment = queue.pull("another", world.now)
    gets = len(assignment.rows) or len(assignment.failed) or any(queue.wants(name) for name in world.members)
    assert world.queue.has_rows_for_another or not gets


@settings(max_examples=30, deadline=None)
@given(
    slots=st.integers(1, 70),
    poison=st.sets(st.integers(0, 199), min_size=0, max_size=3),
    replicas=st.integers(1, 3),
)
def test_poison_rows_are_found(slots: int, poison: set[int], replicas: int) -> None:
    """Each within ceil(log2(rows in the engine)) + 1 deaths; a row that does not kill is never blamed."""
    world = World(RowIndex([30, 70, 100], [1, 1, 1]))
    deaths = 0
    for _ in range(replicas):
        world.join(slots)
    for _ in range(5000):
        for name in sorted(world.members):
            world.now += 1
            if poison & set(world.members[name].engine()):
                deaths += 1
                world.lose(name, engine_died=True, knows_begun=True)
                world.join(slots)
            else:
                world.answer(name)
        if world.queue.is_finished:
            break
    assert {row for row, good in world.written.items() if not good} == poison
    assert len(world.written) == 200
    assert deaths <= len(poison) * (math.ceil(math.log2(max(2, slots))) + 1)


def test_silent_deaths_blame_a_row_only_for_the_fourth() -> None:
    world = World(RowIndex([1], [1]))
    for _ in range(5):
        name = world.join(1)
        assert world.pull(name).failed.tolist() == []
        world.lose(name, engine_died=False, knows_begun=False)
    assert world.pull(world.join(1)).failed.tolist() == [0]


def test_small_files_fill_the_engine() -> None:
    """The first call gives as many rows as there are slots, in the order on disk: 600 files of a row each."""
    world = World(RowIndex([1] * 600, [10] * 600))
    assignment = world.pull(world.join(256))
    assert len(assignment.rows) >= 256
    assert assignment.rows.tolist() == list(range(len(assignment.rows)))
    assert not assignment.borrow
    assert not assignment.put  # no other replica gets rows of them


def test_one_row_group_feeds_all_replicas_and_is_read_once() -> None:
    world = World(RowIndex([3072], [1_000_000]))
    names = [world.join(1024), world.join(1024)]
    assignments = [world.pull(name) for name in names]
    assert all(len(assignment.rows) >= 1024 for assignment in assignments)
    assert (assignments[0].put, assignments[1].borrow) == ({0}, {0})
    assert world.bytes_read == 1_000_000


@pytest.mark.parametrize(("in_order", "first"), [(False, 100), (True, 16)])
def test_where_order_counts_a_piece_is_for_all(in_order: bool, first: int) -> None:
    """Else the rest of it is for the replica that has read it, while there are others."""
    queue = PullQueue(RowIndex([100, 100], [1, 1], in_order=in_order))
    for name in "ab":
        queue.join(name, 4, now=0.0)
    assert queue.pull("a", 0.0).rows.tolist() == list(range(16))
    assert queue.pull("b", 0.0).rows.tolist() == list(range(first, first + 16))
    assert queue.pull("a", 1.0, PullRequest(16, 16.0, np.arange(16))).rows[0] == (32 if in_order else 16)


def test_where_order_counts_the_rows_of_a_lost_replica_are_next() -> None:
    queue = PullQueue(RowIndex([1000], [1], in_order=True))
    for name in "ab":
        queue.join(name, 4, now=0.0)
        queue.pull(name, 0.0)
    queue.lost("a", 1.0, begun=Begun([]))
    queue.join("c", 4, 1.0)
    assert queue.pull("c", 1.0).rows.tolist() == list(range(16))


def test_a_piece_that_comes_again_is_not_dropped_before() -> None:
    """All of it was given, and then the replica that had borrowed the rest was lost."""
    world = World(RowIndex([4], [1]))
    borrower, reader = world.join(2), world.join(1)
    world.pull(reader)
    world.pull(borrower)
    world.lose(borrower, engine_died=False, knows_begun=False)
    for _ in range(20):
        world.now += 1
        world.pull(reader, len(world.members[reader].holds))
    assert world.queue.is_finished
    assert world.bytes_read == 1


def test_suspected_rows_all_begin() -> None:
    """One that runs them alone must not keep some outside its engine."""
    world = World(RowIndex([40], [1]))
    first = world.join(40)
    world.pull(first)
    world.lose(first, engine_died=True, knows_begun=True)
    assignment = world.pull(world.join(40))
    assert assignment.isolated
    assert not assignment.has_share


def test_speed_is_that_of_a_full_engine() -> None:
    """While it lets in fewer rows than it has slots, nothing is learned of its speed."""
    queue = PullQueue(RowIndex([10_000], [1]))
    queue.join("one", 100, 0.0)
    for second in range(30):
        queue.pull("one", float(second), PullRequest(10 * second, 10.0 * second, at_once=50))
    assert queue._replicas["one"].speed.rate is None
    for second in range(30, 60):
        queue.pull("one", float(second), PullRequest(10 * second, 10.0 * second, at_once=100))
    assert queue._replicas["one"].speed.rate == pytest.approx(10.0)


@pytest.mark.parametrize(
    ("all_rows", "size", "slots", "starting", "rows", "has_share"),
    [
        (100, 1, 20, 1, 50, True),  # its share, also where others have not taken theirs yet
        (1000, 1, 20, 0, 80, False),  # more rows come
        (400, 1, 100, 1, 200, True),
        (400, 1, 100, 7, 100, True),  # what its engine can run; the rest is for those that start
        (4000, 4000, 200, 0, 800, False),
        (4000, 4000 * 2**20, 200, 0, 400, False),  # large rows are not held ahead
    ],
)
def test_first_replica_gets_what_it_can_use(
    all_rows: int, size: int, slots: int, starting: int, rows: int, has_share: bool
) -> None:
    world = World(RowIndex([all_rows], [size]))
    world.queue.starting = starting
    assignment = world.pull(world.join(slots))
    assert (len(assignment.rows), assignment.has_share) == (rows, has_share)


def test_one_that_is_about_to_join_finds_its_share() -> None:
    """Also where all rows fit into one engine, which can't give back what it has begun."""
    queue = PullQueue(RowIndex([40], [40]))
    queue.coming = 1
    queue.join("first", 64, 0.0)
    assert len(queue.pull("first", 0.0).rows) == 20
    queue.coming = 0
    queue.join("second", 64, 1.0)
    assert len(queue.pull("second", 1.0).rows) == 20


def test_a_replica_that_was_given_up_must_end() -> None:
    world = World(RowIndex([10], [1]))
    name = world.join(4)
    world.pull(name)
    world.lose(name, engine_died=False, knows_begun=False)
    with pytest.raises(StaleReplicaError, match="taken for lost"):
        world.queue.pull(name, 1.0)


def test_suspected_rows_get_an_empty_engine() -> None:
    """If no replica starts or idles for a minute, one that works is emptied for them."""
    world = World(RowIndex([10_000], [1]))
    first, second = world.join(4), world.join(4)
    world.pull(first)
    world.pull(second)
    world.lose(first, engine_died=True, knows_begun=True)
    for _ in range(70):
        world.now += 1
        assignment = world.pull(second, len(world.members[second].holds) // 2)
        if assignment.flush:
            break
    assert world.now >= 60
    assert world.pull(second, len(world.members[second].holds)).isolated


def test_memory_of_a_million_rows() -> None:
    """At most 5 bytes a row, with all that the queue may know of it."""
    rows = 1_000_000
    done = np.zeros(rows, dtype=bool)
    pieces = [8] * (rows // 8), [1] * (rows // 8)
    tracemalloc.start()
    queue = PullQueue(RowIndex(*pieces, done))
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert not queue.is_finished
    assert kept / rows <= 5
