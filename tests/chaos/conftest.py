# SPDX-License-Identifier: Apache-2.0
"""One Airflow and one Ray cluster for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .workload import Pace
from .world import World

PACE = Pace(rows=1600, equal=2)
PARALLEL = 4


@pytest.fixture(scope="session")
def world() -> Iterator[World]:
    with World(cpus=PARALLEL * PACE.replicas) as world:
        yield world
