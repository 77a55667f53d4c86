# SPDX-License-Identifier: Apache-2.0
"""One Airflow with two API servers for the kills. It ends with them: beside others it would go on polling."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .world import BatchApiWorld


@pytest.fixture(scope="module")
def batch_api_world() -> Iterator[BatchApiWorld]:
    with BatchApiWorld() as world:
        yield world
