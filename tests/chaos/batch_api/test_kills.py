# SPDX-License-Identifier: Apache-2.0
"""A short round of kills; `make batch-kills` plays long ones."""

from __future__ import annotations

import pytest

from ..version import version
from .plan import MOMENTS, plan
from .rounds import play

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.mark.parametrize(
    "seed",
    [
        1000,
        *(
            pytest.param(seed, marks=pytest.mark.thorough("more kills of API servers; one runs always"))
            for seed in (1001, 1002)
        ),
    ],
)
def test_nothing_is_lost_run_twice_or_goes_back(batch_api_world, seed):
    """Two kills: of a server, and of what works for the batches."""
    server, *others = sorted(plan(seed, each=1), key=lambda kill: kill.kind != "server")
    assert server.moment in MOMENTS
    kills = [server, others[seed % len(others)]]
    result = play(batch_api_world, seed, kills, version(), users=2)
    assert not result.flaws, result
