# SPDX-License-Identifier: Apache-2.0
"""A short round with other kills for each commit whose turn it is; `make batch-kills` plays long ones."""

from __future__ import annotations

import pytest

from tests.support.turn import TURN, TURNS, turn

from ..version import version
from .plan import MOMENTS, plan
from .rounds import play

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

SEEDS = 1000
"""The seeds of tests begin here."""


@pytest.mark.turn(7)
def test_nothing_is_lost_run_twice_or_goes_back(batch_api_world):
    """Two kills: of a server, and of what works for the batches."""
    print(f"{TURN}={turn()} repeats this.")
    round_ = turn() // TURNS
    server, *others = sorted(plan(SEEDS + round_, each=1), key=lambda kill: kill.kind != "server")
    assert server.moment in MOMENTS
    result = play(batch_api_world, SEEDS + round_, [server, others[round_ % len(others)]], version(), users=2)
    assert not result.flaws, result
