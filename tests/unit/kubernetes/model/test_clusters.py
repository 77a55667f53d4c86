# SPDX-License-Identifier: Apache-2.0
"""A cluster for each run, never leaked and never two: real functions, with every order of steps and faults.

By default, faults are tried in a sample of the states; ``RAYBATCH_MODEL=all`` tries them in all.
Time is simulated.
"""

from __future__ import annotations

from functools import partial

import pytest

from airflow_provider_raybatch.kubernetes.kuberay import lifecycle
from tests.unit.model.exploring import EFFORT, explore, thorough

from .cluster_world import CLOCK, World

FAULTS = (
    "lost",
    "late",
    "kill",
    "freeze",
    "operator",
    "head",
    "raycluster",
    "rayjob",
    "job",
    "suspend",
    "clear, kill",
    "clear, freeze",
    "mark failed",
)
MANY = {"freeze", "clear, freeze", "operator", "suspend"}
"""Faults after which much may still happen, in any order."""


@pytest.fixture(autouse=True)
def coarse_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cluster that does not go is looked at four times."""
    monkeypatch.setattr(lifecycle, "_WAIT", lifecycle.RELEASE_TIMEOUT / 4)
    monkeypatch.setattr(lifecycle, "time", CLOCK)


def assert_done(faults: tuple[str, ...], times: int, one_in: int) -> None:
    stride = {"some": 3 * one_in, "more": one_in, "all": 1}[EFFORT]
    graph = explore(partial(World, faults, times, set()), World.ends, stride, first=0)
    print(faults, graph)
    assert graph.ends
    assert not graph.stuck()


def test_a_run_without_faults() -> None:
    assert_done((), 0, 1)


@pytest.mark.parametrize(
    "fault", [pytest.param(one, marks=thorough) if one == "clear, freeze" else one for one in FAULTS]
)
def test_every_single_fault(fault: str) -> None:
    assert_done((fault,), 1, 41 if fault in MANY else 7)


PAIRS = [
    ("kill", "lost"),
    ("kill", "late"),
    ("kill", "rayjob"),
    ("kill", "head"),
    ("kill", "operator"),
    pytest.param(("lost", "job"), marks=thorough),
    ("mark failed", "kill"),
    ("clear, kill", "kill"),
]


@pytest.mark.parametrize("faults", PAIRS, ids=str)
def test_pairs_of_faults(faults: tuple[str, ...]) -> None:
    assert_done(faults, 2, 211 if {"late", "operator", "clear, kill", "head"} & {*faults} else 101)
