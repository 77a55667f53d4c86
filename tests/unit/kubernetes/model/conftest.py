# SPDX-License-Identifier: Apache-2.0
"""As in ``tests/unit/model``: explorations have a limit in seconds of CPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.model.conftest import SECONDS, limited  # noqa: F401 - a fixture


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for one in items:
        if Path(__file__).parent in one.path.parents:
            one.add_marker(pytest.mark.timeout(10 * SECONDS))
