# SPDX-License-Identifier: Apache-2.0
"""Some kills of tasks on clusters that tasks make.

`make kubernetes-kills` and `make shared-kills` play all.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from .dag_run import shared_rounds
from .journeys import calls_of, recorded_dag_run
from .plan import MODES, Recorded, Round, at_every_point, at_random
from .rounds import play

pytestmark = pytest.mark.timeout(180)
_KILLS, _OTHERS, _SHARED = 2, 1, 1
"""In each mode."""


def rounds(mode: str) -> list[Round]:
    """Kills between two calls of one mode, and other deeds."""
    known = Recorded({mode: calls_of(Round(-1, mode))})
    points = at_every_point(known)
    kills = points[:: len(points) // _KILLS][:_KILLS]
    return [*kills, *(at_random(1000 + number, known) for number in range(_OTHERS))]


def rounds_of_dag_runs(mode: str) -> list[Round]:
    """Kills of DAG runs that share a cluster, in one mode."""
    known = shared_rounds(recorded_dag_run((mode,)))
    return known[:: len(known) // _SHARED][:_SHARED]


@pytest.mark.parametrize("mode", MODES)
def test_whatever_dies_the_cluster_goes(mode: str) -> None:
    assert_all_good(rounds(mode))


@pytest.mark.parametrize("mode", MODES)
def test_whatever_dies_the_shared_cluster_goes(mode: str) -> None:
    assert_all_good(rounds_of_dag_runs(mode))


def assert_all_good(played: list[Round]) -> None:
    with ThreadPoolExecutor(2) as pool:
        results = [result for result, _ in pool.map(play, played)]
    print(*(f"{one.told}: {one.state}, {one.seconds} s" for one in results), sep="\n")
    assert {one.told: one.flaws for one in results if one.flaws} == {}
