# SPDX-License-Identifier: Apache-2.0
"""Every point between two steps is struck once, and nothing is lost, paid twice or published twice."""

from __future__ import annotations

import time

import pytest

from tests.support.s3_server import serving

from ..turn import TURN, turn
from .catalogue import POINTS
from .journeys import journeys
from .striking import together

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
PARALLEL = 6


@pytest.fixture(scope="module")
def outcomes(world, tmp_path_factory):
    aims, began = journeys(turn()), time.monotonic()
    print(f"{TURN}={turn()} repeats this.")
    with serving() as server:
        found = together(world, aims, PARALLEL, print, tmp_path_factory.mktemp("flawed"), server)
    print(f"{len(aims)} runs in {time.monotonic() - began:.0f} s")
    return found


@pytest.mark.parametrize("name", POINTS)
def test_a_run_survives_a_strike(name, outcomes):
    through = [one for one in outcomes if name in one.points]
    assert through
    assert not [str(one) for one in through if one.flaws]
