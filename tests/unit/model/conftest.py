# SPDX-License-Identifier: Apache-2.0
"""Explorations compute, so their limit is in seconds of CPU; the one of the clock is for what hangs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from .clock import cpu_limit
from .exploring import STRIDE

SECONDS = 300 if STRIDE > 1 else 36_000


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for one in items:
        if Path(__file__).parent in one.path.parents:
            one.add_marker(pytest.mark.timeout(10 * SECONDS))


@pytest.fixture(autouse=True)
def limited() -> Iterator[None]:
    with cpu_limit(SECONDS):
        yield
