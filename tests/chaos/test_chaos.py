# SPDX-License-Identifier: Apache-2.0
"""Seven kills, one of each kind and others with each commit; the runs share Airflow and a Ray cluster."""

from __future__ import annotations

import pytest

from . import results
from .conftest import PACE, PARALLEL
from .lives import Lives
from .plan import KINDS, MODES, plan
from .runs import Setting, together
from .turn import TURN, turn
from .version import version

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
# Seconds; less than these ever take, so that there is somebody left to kill.
LIVES: Lives = {(kind, mode): 20.0 for kind in KINDS for mode in MODES} | {
    ("engine", mode): 6.0 for mode in MODES
}


@pytest.fixture(scope="module")
def by_kind(world, results_file):
    first = len(KINDS) * turn()
    kills = [plan(seed) for seed in range(first, first + len(KINDS))]
    print(f"{TURN}={turn()} repeats this.")

    def noted(kills):
        found = together(Setting(world, PACE, version()), kills, PARALLEL, LIVES, print)
        for result in found:
            results.append_run(results_file, result)
        return {result.kind: result for result in found}

    found = noted(kills)
    # A busy machine may miss an instant, which tells nothing of the product; missed twice is a defect here.
    return found | noted([kill for kill in kills if found[kill.kind].missed])


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_lost_nothing_paid_twice(kind, by_kind):
    assert not by_kind[kind].flaws, by_kind[kind]
