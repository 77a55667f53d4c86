# SPDX-License-Identifier: Apache-2.0
"""A task that runs several times."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.repeated_task import RepeatedTask


@pytest.fixture
def task(tmp_path: Path, ray_here: Any) -> RepeatedTask:
    return RepeatedTask(tmp_path)
