# SPDX-License-Identifier: Apache-2.0
"""Some kills of tasks with clusters of their own; each commit has others, and `make kubernetes-kills` all."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.turn import TURN, turn

from .journeys import calls_of
from .plan import MODES, Recorded, Round, at_every_point, at_random
from .rounds import play

pytestmark = pytest.mark.timeout(180)
_KILLS, _OTHERS = 4, 3


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


def test_whatever_dies_the_cluster_goes() -> None:
    print(f"{TURN}={turn()} repeats this.")
    played = rounds()
    with ThreadPoolExecutor(2) as pool:
        results = [result for result, _ in pool.map(play, played)]
    print(*(f"{one.told}: {one.state}, {one.seconds} s" for one in results), sep="\n")
    assert {one.told: one.flaws for one in results if one.flaws} == {}
