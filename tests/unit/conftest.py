# SPDX-License-Identifier: Apache-2.0
"""Property tests have the same result on each run, however slow the machine is. And a browser."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

from tests.support.browser import browser  # noqa: F401 - a fixture

settings.register_profile(
    "raybatch",
    database=None,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
settings.load_profile("raybatch")
