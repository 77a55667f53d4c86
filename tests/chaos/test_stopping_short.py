# SPDX-License-Identifier: Apache-2.0
"""The short form of the stopping matrix: one way of stopping for each mode."""

from __future__ import annotations

import pytest

from .stopping import deeds

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
WAYS = (("marked failed", "blocking"), ("cleared", "deferrable"))


def test_marked_and_cleared_tasks_stop_their_jobs(world):
    assert [str(stop) for stop in deeds(world, WAYS) if stop.flaws] == []
