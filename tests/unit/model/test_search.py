# SPDX-License-Identifier: Apache-2.0
"""The pull queue and the search for poison rows, with every order of events and faults in small worlds.

Faults are tried in the first states of a world, and in some of the later ones: by ``RAYBATCH_MODEL=more`` in
the first 300 and in one of 69, by ``all`` in all, and in the largest worlds.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest

from .exploring import STRIDE, Graph, explore, thorough
from .search import World, searching
from .search_scope import Scope

pytestmark = pytest.mark.slow

CALLS_OF_A_PROCESS, CALLS_OF_A_ROW = 6, 4
DEATHS, CALLS, REQUESTS = range(3)


@pytest.fixture(autouse=True)
def model() -> Iterator[None]:
    with searching():
        yield


def rows(*some: int) -> frozenset[int]:
    return frozenset(some)


def check_outcomes(world: World) -> int:
    """Check that the driver has the right outcome of each row; return the number of faults."""
    scope = world.scope
    assert not world.failed
    outcomes = world.outcomes()
    if world.coordinator._draining:
        assert world.answered <= outcomes.keys(), "an answer is lost"
    else:
        assert outcomes.keys() == set(scope.rows)
    assert outcomes == {row: [row not in scope.deadly | scope.bad] for row in outcomes}
    return scope.times - world.faults_left if scope.faults else 0


def check_costs(scope: Scope, graph: Graph) -> None:
    """Check that few processes die, replicas call seldom, and few rows are asked again."""
    deaths, calls, requests = (graph.most(count) for count in (DEATHS, CALLS, REQUESTS))
    for faults, most in deaths.items():
        assert isinstance(faults, int)
        # A fault may restart a search, with all rows that the process held.
        held = min(len(scope.rows), 4 * scope.slots if faults else scope.slots)
        searches = len(scope.deadly) + (faults if scope.deadly else 0)
        killed = faults * (scope.replicas if "node" in scope.faults else 1)
        late = faults if "freeze" in scope.faults else 0
        assert most <= searches * scope.restarts_to_find(held) + 3 * len(scope.hogs) + killed + late
        processes = scope.replicas + most
        assert calls[faults] <= CALLS_OF_A_PROCESS * processes + CALLS_OF_A_ROW * len(scope.rows)
        # A killed process loses unwritten rows; a process that drains, or whose engine dies, writes them.
        ended = most - killed + (scope.replicas if "drain" in scope.faults else 0)
        assert requests[faults] <= (1 + killed) * len(scope.rows) + ended * scope.slots


def assert_done(scope: Scope) -> None:
    graph = explore(partial(World, scope), check_outcomes, 3 * STRIDE if STRIDE > 1 else 1)
    print(scope, graph)
    assert graph.ends
    assert not graph.stuck(), "all processes wait"
    check_costs(scope, graph)


@pytest.mark.parametrize(
    "scope",
    [
        *(Scope((2, 2), killers=rows(one, other)) for one in range(4) for other in range(one, 4)),
        *(Scope((5, 1), slots=4, killers=rows(killer)) for killer in (0, 2, 4)),
    ],
    ids=str,
)
def test_poison_rows_are_found_within_the_bound(scope: Scope) -> None:
    """One or two, in any place."""
    assert_done(scope)


@pytest.mark.parametrize(
    "scope",
    [
        Scope((2, 1), hogs=rows(0)),
        Scope((2, 1), hogs=rows(2)),
        Scope((2, 1), bad=rows(1)),
        Scope((2, 1), bad=rows(0), killers=rows(1)),
        Scope((1, 1), replicas=2, killers=rows(0)),
        Scope((2,), replicas=2, slots=1, killers=rows(1)),
    ],
    ids=str,
)
def test_each_row_has_its_own_outcome(scope: Scope) -> None:
    """A row that makes the system kill the engine is found later, after four deaths."""
    assert_done(scope)


@pytest.mark.parametrize(
    "scope",
    [
        Scope((2, 1), replicas=2),
        Scope((4,), replicas=2, slots=1),
        Scope((1, 1), replicas=3),
        Scope((2, 1), replicas=2, faults=("drain",)),
        pytest.param(Scope((2, 1), replicas=2, faults=("freeze",)), marks=thorough),
        Scope((2, 1), replicas=2, faults=("node for good",)),
    ],
    ids=str,
)
def test_replicas_share_the_rows(scope: Scope) -> None:
    """They start at any time; one may never come back or count as lost, and all may be stopped."""
    assert_done(scope)


@pytest.mark.parametrize(
    "scope",
    [
        Scope((2, 1), replicas=2, fewest=1),
        Scope((1, 1), replicas=3, fewest=1),
        Scope((1, 1), replicas=3, fewest=2),
        pytest.param(Scope((1, 1), replicas=2, fewest=1, faults=("kill",)), marks=thorough),
        Scope((1, 1), replicas=2, fewest=1, faults=("node",)),
        Scope((1, 1), replicas=2, fewest=1, faults=("freeze",)),
        Scope((1, 1), replicas=2, fewest=1, faults=("drain",)),
        Scope((1, 1), replicas=2, fewest=1, killers=rows(0)),
        Scope((2,), replicas=2, slots=1, fewest=1, killers=rows(1)),
        pytest.param(Scope((1, 1), replicas=3, fewest=2, faults=("node for good",)), marks=thorough),
    ],
    ids=str,
)
def test_replicas_that_leave_lose_no_row(scope: Scope) -> None:
    """Whenever each starts; also where those that stay die, and what they had comes back."""
    assert_done(scope)


@pytest.mark.parametrize(
    "scope",
    [
        Scope((2, 1), faults=("kill",)),
        Scope((2, 1), faults=("engine killed",)),
        Scope((2, 1), faults=("fluke",)),
        Scope((1,), faults=("fluke",)),
        Scope((2,), faults=("kill", "engine killed"), times=2),
        Scope((1,), faults=("kill", "engine killed"), times=3),
        Scope((1, 1), replicas=2, faults=("kill",)),
        Scope((1, 1), replicas=2, faults=("node",)),
        # During a search.
        Scope((2, 1), killers=rows(1), faults=("kill",)),
        Scope((4,), slots=1, killers=rows(2), faults=("kill",)),
        Scope((2,), killers=rows(0), faults=("freeze",)),
        Scope((2, 1), killers=rows(0), faults=("drain",)),
        Scope((1, 1), replicas=2, killers=rows(0), faults=("node for good",)),
    ],
    ids=str,
)
def test_faults_blame_no_row(scope: Scope) -> None:
    assert_done(scope)


@pytest.mark.parametrize(
    "scope",
    [
        Scope((3,), equal=rows(0, 2)),
        Scope((1, 1), replicas=2, equal=rows(0, 1)),
        Scope((2, 1), replicas=2, slots=1, equal=rows(0, 2)),
        Scope((1, 1), replicas=2, equal=rows(0, 1), faults=("kill",)),
        Scope((1, 1), replicas=2, equal=rows(0, 1), faults=("freeze",)),
        Scope((1, 1), replicas=2, equal=rows(0, 1), faults=("drain",)),
        # One replica waits for rows that the other one has lost.
        Scope((3, 3), replicas=2, slots=1, equal=rows(*range(6)), faults=("node for good",)),
        pytest.param(
            Scope((2, 2), replicas=2, slots=1, equal=rows(*range(4)), faults=("kill",)), marks=thorough
        ),
        pytest.param(Scope((1, 1), replicas=2, fewest=1, equal=rows(0, 1), faults=("kill",)), marks=thorough),
        Scope((2, 1), equal=rows(0, 2), killers=rows(0, 2)),
        Scope((1, 1), replicas=2, equal=rows(0, 1), killers=rows(0, 1), restarts=4),
        Scope((4,), replicas=2, slots=1, equal=rows(0, 3)),
    ],
    ids=str,
)
def test_equal_rows_are_asked_once(scope: Scope) -> None:
    """Whoever asks them, dies, leaves or gives them back."""
    assert_done(scope)


@pytest.mark.parametrize("restarts", [0, 1, 2])
@pytest.mark.parametrize("pieces", [(3,), (2, 1), (1, 1, 1)], ids=str)
def test_engine_that_dies_of_every_row_is_given_up(pieces: tuple[int, ...], restarts: int) -> None:
    every = rows(*Scope(pieces).rows)
    scope = Scope(pieces, killers=every, restarts=restarts)
    graph = explore(partial(World, scope), lambda world: world.failed)
    assert graph.most(DEATHS).keys() == {True}
    assert graph.most(DEATHS)[True] <= 2 + 2 * restarts


@pytest.mark.parametrize("killer", [3, *(pytest.param(row, marks=thorough) for row in (4, 5))])
def test_an_engine_that_works_is_not_given_up(killer: int) -> None:
    """With halving alone, three deaths would come before a row is found or finished."""
    assert_done(Scope((6,), slots=6, killers=rows(0, killer), restarts=2))


LARGER = [
    Scope((2, 1), replicas=2, killers=rows(1)),
    Scope((2, 2), replicas=2, killers=rows(1)),
    Scope((1, 1), replicas=2, killers=rows(0, 1)),
    Scope((1, 1), replicas=2, killers=rows(0), faults=("kill",)),
    Scope((1, 1, 1), replicas=3, slots=1),
    Scope((1, 1), replicas=3, faults=("kill",)),
    Scope((2, 1), replicas=2, faults=("kill",)),
    Scope((2, 1), replicas=2, faults=("kill", "freeze", "drain")),
    Scope((3, 1), killers=rows(1), faults=("kill",)),
    Scope((2, 1), killers=rows(0, 2), faults=("kill",)),
    Scope((2,), killers=rows(0), faults=("kill",), times=3),
    Scope((2,), killers=rows(0), faults=("kill", "engine killed"), times=2),
    Scope((2,), hogs=rows(1), faults=("kill",), restarts=4),
    Scope((1, 1), replicas=2, faults=("node",), times=2),
]
"""Of many minutes."""

if STRIDE == 1:

    @pytest.mark.parametrize("scope", LARGER, ids=str)
    def test_larger_worlds(scope: Scope) -> None:
        assert_done(scope)
