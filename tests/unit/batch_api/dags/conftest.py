# SPDX-License-Identifier: Apache-2.0
"""Fixtures of served batches: a fake Jobs API, and a task in a real Airflow."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_raybatch.batch_api.store.store import BatchStore
from tests.support.airflow_tasks import clock, dag_test, installation, ray, run  # noqa: F401 - fixtures
from tests.support.batch_api import configured


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> BatchStore:
    return configured(monkeypatch, tmp_path)
