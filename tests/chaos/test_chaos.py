# SPDX-License-Identifier: Apache-2.0
"""One kill of each kind; `make test-all` plays each in the other mode and the other store, too."""

from __future__ import annotations

import pytest

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
ALONE = 0.5
"""Share of that which a run takes that has the machine for itself."""


ROUNDS = (0, 1, 5)
"""Of one seed a kind, so that modes and stores alternate: in these, each kind comes in each of both."""
PLAYED = [
    pytest.param(
        number,
        marks=[pytest.mark.thorough("kills in the other mode and store; one of each kind runs always")]
        if number
        else [],
    )
    for number in ROUNDS
]


def kills_of(round_: int) -> list[Kill]:
    return [plan(seed) for seed in range(len(KINDS) * round_, len(KINDS) * (round_ + 1))]


@pytest.fixture(scope="module", params=PLAYED)
def by_kind(world, request):
    kills = kills_of(request.param)

    def noted(kills, lives):
        found = together(Setting(world, PACE, version()), kills, PARALLEL, lives, print)
        return {result.kind: result for result in found}

    found = noted(kills, LIVES)
    # A missed kill says nothing about the product; a second miss is a defect of the harness.
    missed = [kill for kill in kills if found[kill.kind].missed]
    return found | noted(missed, {life: ALONE * seconds for life, seconds in LIVES.items()})


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_lost_nothing_paid_twice(kind, by_kind):
    assert not by_kind[kind].flaws, by_kind[kind]


def test_each_kind_comes_in_each_mode_and_store():
    kills = [kill for number in ROUNDS for kill in kills_of(number)]
    for kind in KINDS:
        of_kind = [kill for kill in kills if kill.kind == kind]
        assert {kill.mode for kill in of_kind} == set(MODES[1:] if kind == "triggerer" else MODES)
        assert {kill.store for kill in of_kind} == {"disk", "s3"}
