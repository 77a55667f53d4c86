# SPDX-License-Identifier: Apache-2.0
"""A short round of kills; `make batch-kills` plays long ones."""

from __future__ import annotations

import pytest

from ..version import version
from .plan import MOMENTS, plan
from .rounds import play

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


SEED = 1000


def test_nothing_is_lost_run_twice_or_goes_back(batch_api_world):
    """Two kills: of a server, and of what works for the batches."""
    server, *others = sorted(plan(SEED, each=1), key=lambda kill: kill.kind != "server")
    assert server.moment in MOMENTS
    kills = [server, others[SEED % len(others)]]
    result = play(batch_api_world, SEED, kills, version(), users=2)
    assert not result.flaws, result
