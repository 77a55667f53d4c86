# SPDX-License-Identifier: Apache-2.0
"""Fixtures of bad inputs on a real Ray."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.bad_inputs import Place


@pytest.fixture
def place(tmp_path: Path, modules: Path) -> Place:
    return Place(tmp_path, modules)
