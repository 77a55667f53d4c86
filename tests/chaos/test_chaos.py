# SPDX-License-Identifier: Apache-2.0
"""Kills of each kind in eight checks; each commit has another one, or none."""

from __future__ import annotations

import pytest

from tests.support.turn import TURN, TURNS, of_this_turn, turn

from .conftest import PACE, PARALLEL
from .lives import Lives
from .plan import KINDS, MODES, Kill, plan
from .runs import Setting, together
from .version import version

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
# Seconds; less than the real lifetimes beside other runs, so that the victim is still there.
LIVES: Lives = {(kind, mode): 20.0 for kind in KINDS for mode in MODES} | {
    ("engine", "blocking"): 6.0,
    ("engine", "deferrable"): 6.0,
    ("worker", "deferrable"): 1.8,  # until it defers
}
KINDS_NOW = of_this_turn(KINDS)
ALONE = 0.5
"""Share of that which a run takes that has the machine for itself."""


def kills_of(now: int) -> list[Kill]:
    """Of a round of eight turns each kind has a seed of its own, so that modes and stores alternate."""
    first = len(KINDS) * (now // TURNS)
    kinds = of_this_turn(KINDS, now)
    return [kill for kill in map(plan, range(first, first + len(KINDS))) if kill.kind in kinds]


@pytest.fixture(scope="module")
def by_kind(world):
    kills = kills_of(turn())
    print(f"{TURN}={turn()} repeats this.")

    def noted(kills, lives):
        found = together(Setting(world, PACE, version()), kills, PARALLEL, lives, print)
        return {result.kind: result for result in found}

    found = noted(kills, LIVES)
    # A missed kill says nothing about the product; a second miss is a defect of the harness.
    missed = [kill for kill in kills if found[kill.kind].missed]
    return found | noted(missed, {life: ALONE * seconds for life, seconds in LIVES.items()})


@pytest.mark.parametrize("kind", KINDS_NOW)
def test_nothing_is_lost_nothing_paid_twice(kind, by_kind):
    assert not by_kind[kind].flaws, by_kind[kind]


def test_each_kind_comes_in_each_mode_and_store():
    found = {(kill.kind, kill.mode, kill.store) for now in range(6 * TURNS) for kill in kills_of(now)}
    modes = {kind: MODES[1:] if kind == "triggerer" else MODES for kind in KINDS}
    assert found == {
        (kind, mode, store) for kind in KINDS for mode in modes[kind] for store in ("disk", "s3")
    }
