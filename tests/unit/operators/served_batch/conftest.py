# SPDX-License-Identifier: Apache-2.0
"""Fixtures of served batches."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_raybatch.batches.store import BatchStore
from tests.support.batch_api import configured


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> BatchStore:
    return configured(monkeypatch, tmp_path)
