# SPDX-License-Identifier: Apache-2.0
"""One Airflow and one Ray cluster for all tests of this folder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from .workload import Pace
from .world import World

PACE = Pace(rows=800)
PARALLEL = 4


@pytest.fixture(scope="session")
def world() -> Iterator[World]:
    lowered = os.environ.get("CHAOS_INTERVALS", "lowered") == "lowered"
    with World(cpus=PARALLEL * PACE.replicas, lowered=lowered) as world:
        yield world


@pytest.fixture(scope="session")
def results_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file that ``CHAOS_RESULTS`` names, to which results are appended."""
    named = os.environ.get("CHAOS_RESULTS")
    return Path(named) if named else tmp_path_factory.mktemp("chaos") / "results.jsonl"
