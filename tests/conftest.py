# SPDX-License-Identifier: Apache-2.0
"""Keeps a test run away from the user's own Airflow."""

from __future__ import annotations

import os
import shutil
import tempfile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

_airflow_home = tempfile.mkdtemp(prefix="raybatch-airflow-")
# At import, before any test module imports Airflow, which reads these once.
os.environ["AIRFLOW_HOME"] = _airflow_home
os.environ["AIRFLOW__CORE__LOAD_EXAMPLES"] = "False"


def pytest_unconfigure(config: pytest.Config) -> None:
    shutil.rmtree(_airflow_home, ignore_errors=True)
