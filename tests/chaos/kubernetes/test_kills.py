# SPDX-License-Identifier: Apache-2.0
"""Some kills of tasks on clusters that tasks make; each commit has others.

`make kubernetes-kills` and `make shared-kills` play all.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.turn import TURN, turn

from .dag_run import shared_rounds
from .journeys import calls_of, recorded_dag_run
from .plan import MODES, Recorded, Round, at_every_point, at_random
from .rounds import play

pytestmark = pytest.mark.timeout(180)
_KILLS, _OTHERS, _SHARED = 4, 3, 2


def rounds() -> list[Round]:
    """Kills between two calls of one mode, and other deeds."""
    now = turn()
    mode = MODES[now % 2]
    known = Recorded({mode: calls_of(Round(-1, mode))})
    points = at_every_point(known)
    stride = len(points) // _KILLS
    first = now // 2 % stride
    kills = points[first::stride][:_KILLS]
    return [*kills, *(at_random(1000 + _OTHERS * now + number, known) for number in range(_OTHERS))]


def rounds_of_dag_runs() -> list[Round]:
    """Kills of DAG runs that share a cluster, in one mode."""
    now = turn()
    known = shared_rounds(recorded_dag_run((MODES[now % 2],)))
    stride = len(known) // _SHARED
    return known[now // 2 % stride :: stride][:_SHARED]


def test_whatever_dies_the_cluster_goes() -> None:
    assert_all_good(rounds())


def test_whatever_dies_the_shared_cluster_goes() -> None:
    assert_all_good(rounds_of_dag_runs())


def assert_all_good(played: list[Round]) -> None:
    print(f"{TURN}={turn()} repeats this.")
    with ThreadPoolExecutor(2) as pool:
        results = [result for result, _ in pool.map(play, played)]
    print(*(f"{one.told}: {one.state}, {one.seconds} s" for one in results), sep="\n")
    assert {one.told: one.flaws for one in results if one.flaws} == {}
