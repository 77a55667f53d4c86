# SPDX-License-Identifier: Apache-2.0
"""Property tests have the same result on each run, however slow the machine is; and shared fixtures."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from tests.support.approved import assert_sentences  # noqa: F401 - a fixture
from tests.support.browser import browser  # noqa: F401 - a fixture

settings.register_profile(
    "raybatch",
    max_examples=40,  # the same at each run, so more of them would find more once
    database=None,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
settings.load_profile("raybatch")


@pytest.fixture(autouse=True, scope="session")
def without_waits_for_the_disk() -> Iterator[None]:
    """No test cuts the power: what is not synced outlives a killed process all the same.

    Tests of the syncs themselves put their own function in its place.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda file: None)
        yield
