# SPDX-License-Identifier: Apache-2.0
"""Selects what the checks of this commit try, where all of it would take too long for each commit."""

from __future__ import annotations

import os
import subprocess
import time
import zlib
from collections import Counter
from collections.abc import Hashable, Sequence
from itertools import groupby
from pathlib import Path
from typing import TypeVar

import pytest

Item = TypeVar("Item")

TURN = "RAYBATCH_TURN"
"""Environment variable that repeats what another commit's checks did."""

TURNS = 8
"""Consecutive commits whose checks run all tests."""

SHARES = (2, 4, 8)
"""Divisors of :data:`TURNS`, so that each part of a share comes as often as any other."""


def turn() -> int:
    """Return a number from the environment, else of the commit, else of the day, so that checks vary."""
    if TURN in os.environ:
        return int(os.environ[TURN])
    command = ["git", "-C", str(Path(__file__).parent), "rev-list", "--count", "HEAD"]
    try:
        return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    except (OSError, subprocess.CalledProcessError):
        return int(time.time() // 86400)


def of_this_turn(items: Sequence[Item], now: int | None = None) -> Sequence[Item]:
    """Return an eighth of `items`: every eighth one, so that each eighth has some of all kinds.

    :param now: the turn; by default, this commit's.
    """
    return items[(turn() if now is None else now) % TURNS :: TURNS]


def turns_of(tests: Sequence[pytest.Item]) -> dict[pytest.Item, frozenset[int]]:
    """Return the turns in which each test runs.

    A test marked ``turn`` runs in those that it names; with two such marks, in those that both name. Of the
    tests of a module that are marked ``share(n)`` each commit runs one in n, of each function about as many.
    Of several such marks, the largest counts.

    :raises pytest.UsageError: a mark has a turn or a share that is none, or no turn has a test.
    """
    found = {one: _named(one) for one in tests}
    by_share = sorted(filter(_share, tests), key=lambda one: (str(one.path), _share(one)))
    for (path, share), group in groupby(by_share, key=lambda one: (str(one.path), _share(one))):
        if share not in SHARES:
            raise pytest.UsageError(f"{path}: share({share}) is none of {SHARES}")
        # Not all modules begin with the same turn.
        for number, one in enumerate(_mixed(list(group)), zlib.crc32(path.encode())):
            found[one] &= {turn for turn in range(TURNS) if turn % share == number % share}
    for one, turns in found.items():
        if not turns:
            raise pytest.UsageError(f"{one.nodeid}: no turn has this test, by its marks `turn` and `share`")
    return found


def _named(test: pytest.Item) -> frozenset[int]:
    turns = frozenset(range(TURNS))
    for mark in test.iter_markers("turn"):
        if not turns.issuperset(mark.args):
            raise pytest.UsageError(f"{test.nodeid}: turn{mark.args} has a number beyond {TURNS - 1}")
    for mark in test.iter_markers("turn"):
        turns &= frozenset(mark.args)
    return turns


def _share(test: pytest.Item) -> int:
    return max((int(mark.args[0]) for mark in test.iter_markers("share")), default=0)


def _mixed(tests: Sequence[pytest.Item]) -> list[pytest.Item]:
    """Function by function; in one, neighbours have little in common, so that each turn has all sorts."""
    functions = Counter[Hashable]()
    for one in tests:
        functions.setdefault(_function(one), len(functions))
    return sorted(tests, key=lambda one: (functions[_function(one)], zlib.crc32(one.name.encode())))


def _function(test: pytest.Item) -> str:
    return test.nodeid.partition("[")[0]
