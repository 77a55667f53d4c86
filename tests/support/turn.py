# SPDX-License-Identifier: Apache-2.0
"""Selects what the checks of this commit try, where all of it would take too long for each commit."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

Item = TypeVar("Item")

TURN = "RAYBATCH_TURN"
"""Environment variable that repeats what another commit's checks did."""

TURNS = 4
"""Consecutive commits whose checks run all tests."""


def turn() -> int:
    """Return a number from the environment, else of the commit, else of the day, so that checks vary."""
    if TURN in os.environ:
        return int(os.environ[TURN])
    command = ["git", "-C", str(Path(__file__).parent), "rev-list", "--count", "HEAD"]
    try:
        return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    except (OSError, subprocess.CalledProcessError):
        return int(time.time() // 86400)


def of_this_turn(items: Sequence[Item]) -> Sequence[Item]:
    """Return a quarter of `items`: every fourth one, so that each quarter has some of all kinds."""
    return items[turn() % TURNS :: TURNS]
