# SPDX-License-Identifier: Apache-2.0
"""A real API server in this process, with the plugin, a database, and users with different rights."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_raybatch.storage.folder import LocalFolder
from tests.support.airflow_server import running_server, server  # noqa: F401 - fixtures
from tests.support.airflow_tasks import airflow_db  # noqa: F401 - a fixture
from tests.support.folders import disk, folder, s3_server  # noqa: F401 - fixtures


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LocalFolder:
    """A destination that the server may read."""
    monkeypatch.setenv("AIRFLOW__RAYBATCH__REPORT_ROOTS", f" /nowhere, {tmp_path / 'lake'}")
    return LocalFolder(str(tmp_path / "lake/out"))
