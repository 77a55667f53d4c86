# SPDX-License-Identifier: Apache-2.0
"""Every point between two steps is struck in eight checks: nothing is lost, paid twice or published twice."""

from __future__ import annotations

import time

import pytest

from tests.support.s3_server import serving
from tests.support.turn import TURN, TURNS, of_this_turn, turn

from .journeys import journeys
from .striking import together

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
PARALLEL = 6
AIMS = of_this_turn(journeys(turn() // TURNS))


@pytest.fixture(scope="module")
def outcomes(world, tmp_path_factory):
    began = time.monotonic()
    print(f"{TURN}={turn()} repeats this.")
    with serving() as server:
        found = together(world, AIMS, PARALLEL, print, tmp_path_factory.mktemp("flawed"), server)
    print(f"{len(AIMS)} runs in {time.monotonic() - began:.0f} s")
    return {(one.points, one.signal): one for one in found}


@pytest.mark.parametrize("aim", AIMS, ids=str)
def test_a_run_survives_its_strikes(aim, outcomes):
    outcome = outcomes[aim.points, aim.signal]
    assert not outcome.flaws, str(outcome)
