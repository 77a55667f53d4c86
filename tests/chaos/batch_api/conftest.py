# SPDX-License-Identifier: Apache-2.0
"""One Airflow with two API servers for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .world import BatchApiWorld


@pytest.fixture(scope="session")
def batch_api_world() -> Iterator[BatchApiWorld]:
    with BatchApiWorld() as world:
        yield world
