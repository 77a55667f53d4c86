# SPDX-License-Identifier: Apache-2.0
"""Seven kills, one of each kind, over runs that share one Airflow and one Ray cluster."""

from __future__ import annotations

import pytest

from . import results
from .conftest import PACE, PARALLEL
from .plan import KINDS, plan
from .runs import together

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
# The first seeds cover each kind once, both modes, and instants early, in the middle and late.
SEEDS = range(len(KINDS))


@pytest.fixture(scope="module")
def by_kind(world, results_file):
    kills = [plan(seed) for seed in SEEDS]
    # Seconds; less than such a run ever takes, so that there is somebody left to kill.
    found = together(world, kills, PARALLEL, PACE, expected=20, note=print)
    for result in found:
        results.append_run(results_file, result)
    return {result.kind: result for result in found}


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_lost_nothing_paid_twice(kind, by_kind):
    assert by_kind[kind].killed
    assert not by_kind[kind].flaws, by_kind[kind]
