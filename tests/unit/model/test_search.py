# SPDX-License-Identifier: Apache-2.0
"""The search of rows that kill: every order of events in small worlds, and kills from outside at any of them.

By default kills are tried in the first 300 states of a world, and in one of 69 after them; in all of them,
and in larger worlds, with ``RAYBATCH_MODEL=all``.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import combinations

import pytest

from .exploring import STRIDE, explore
from .search import Row, Scope, World, patched

pytestmark = pytest.mark.slow

A, B, C, D = (0, 0), (0, 1), (1, 0), (1, 1)


@pytest.fixture(autouse=True)
def ends_of_processes() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patched(patch)
        yield


def rows(*some: Row) -> frozenset[Row]:
    return frozenset(some)


def found_all(world: World) -> None:
    """Each row is written once, each killer is blamed, and the restarts are bounded."""
    scope = world.scope
    assert world.is_over, "everybody waits"
    assert not world.failed
    assert set(world.parts) == set(scope.rows)
    assert world.blamed == scope.deadly
    # A kill costs one restart, and one search more if it falls into one; four kills alone blame a row.
    searches = len(scope.deadly) + (world.killed if scope.deadly else 0)
    assert world.deaths <= searches * scope.bound + world.killed + 3 * len(scope.hogs)


def assert_found(scope: Scope) -> None:
    done = explore(partial(World, scope), found_all, 3 * STRIDE if STRIDE > 1 else 1)
    assert done.executions
    print(scope, done)


ROWS = [A, B, C, D]


@pytest.mark.parametrize("killers", [*combinations(ROWS, 1), *combinations(ROWS, 2)], ids=str)
def test_rows_that_kill_are_found_within_the_bound(killers: tuple[Row, ...]) -> None:
    assert_found(Scope((2, 2), killers=rows(*killers)))


@pytest.mark.parametrize("killer", [(0, 0), (0, 2), (0, 4)])
def test_a_row_among_many(killer: Row) -> None:
    assert_found(Scope((5, 1), killers=rows(killer)))


def test_rows_of_several_chunks_in_one_half() -> None:
    assert_found(Scope((1, 1, 1), slots=3, killers=rows(A)))


def test_more_chunks_than_slots() -> None:
    assert_found(Scope((2, 1, 1), killers=rows(B, (2, 0))))


@pytest.mark.parametrize("hog", [A, C])
def test_a_row_of_which_the_system_kills_is_found_later(hog: Row) -> None:
    assert_found(Scope((2, 1), hogs=rows(hog)))


@pytest.mark.parametrize(
    "scope",
    [
        Scope((2, 1), kills=1),
        Scope((2,), kills=2),
        Scope((1, 1), kills=2),
        Scope((1,), kills=3),
        Scope((1, 1, 1), slots=1, kills=3),
        Scope((1, 1), replicas=2, kills=1),
        Scope((1, 1), replicas=2, kills=2, node=True),
        Scope((2, 1), kills=1, fluke=True),
        Scope((1,), kills=1, fluke=True),
    ],
    ids=str,
)
def test_kills_from_outside_blame_nobody(scope: Scope) -> None:
    assert_found(scope)


@pytest.mark.parametrize(
    "scope",
    [
        Scope((2, 1), killers=rows(B), kills=1),
        Scope((1, 1), killers=rows(C), kills=2),
        Scope((2,), killers=rows(A), kills=2),
        Scope((1,), killers=rows(A), kills=3),
        Scope((2,), hogs=rows(B), kills=1),
        Scope((2, 1), replicas=2, killers=rows(A), kills=1, node=True),
    ],
    ids=str,
)
def test_kills_from_outside_during_a_search(scope: Scope) -> None:
    assert_found(scope)


@pytest.mark.parametrize("restarts", [0, 1, 2])
@pytest.mark.parametrize("chunks", [(3,), (2, 1), (1, 1, 1)], ids=str)
def test_an_engine_that_dies_of_everything_is_given_up(chunks: tuple[int, ...], restarts: int) -> None:
    every = rows(*Scope(chunks).rows)
    failed = []

    def given_up(world: World) -> None:
        failed.append(world.failed)
        assert world.deaths <= 2 + 2 * restarts

    explore(partial(World, Scope(chunks, killers=every, restarts=restarts)), given_up)
    assert all(failed)


@pytest.mark.skipif(STRIDE > 1, reason="takes minutes; RAYBATCH_MODEL=all runs it")
@pytest.mark.parametrize(
    "scope",
    [
        Scope((2, 2), kills=1),
        Scope((2, 1), kills=2),
        Scope((1, 1), replicas=2, kills=2),
        Scope((2, 1), replicas=2, killers=rows(A), kills=1),
        Scope((3, 1), killers=rows(B), kills=1),
        Scope((2, 1), killers=rows(A, C), kills=1),
        Scope((2, 1), hogs=rows(A), kills=1),
        Scope((2,), killers=rows(A), kills=3),
        Scope((2, 1, 1), replicas=2, killers=rows(A), kills=1, node=True),
    ],
    ids=str,
)
def test_larger_worlds(scope: Scope) -> None:
    assert_found(scope)
