# SPDX-License-Identifier: Apache-2.0
"""Keeps a test run away from the user's own Airflow."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import pytest

_TESTS = Path(__file__).parent
_SIDE_BY_SIDE = ("integration/end_to_end", "integration", "vllm")
"""Folders whose tests share what takes long to start."""

_airflow_home = tempfile.mkdtemp(prefix="raybatch-airflow-")
# At import, before any test module imports Airflow, which reads these once.
os.environ["AIRFLOW_HOME"] = _airflow_home
os.environ["AIRFLOW__CORE__LOAD_EXAMPLES"] = "False"


@pytest.hookimpl(tryfirst=True)  # xdist reads the groups in the same hook
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Side by side with tests of other folders, those of one run one after the other, in one process."""
    for item in items:
        path = item.path.relative_to(_TESTS)
        folder = next((name for name in _SIDE_BY_SIDE if path.is_relative_to(name)), None)
        if folder is not None and item.config.pluginmanager.hasplugin("xdist"):
            item.add_marker(pytest.mark.xdist_group(folder))


def pytest_unconfigure(config: pytest.Config) -> None:
    shutil.rmtree(_airflow_home, ignore_errors=True)
