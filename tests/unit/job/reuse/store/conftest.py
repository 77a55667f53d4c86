# SPDX-License-Identifier: Apache-2.0
"""Stores in folders of each kind."""

from __future__ import annotations

import pytest

from airflow_provider_raybatch.storage.folder import Folder, LocalFolder
from tests.support.responses import Shop


@pytest.fixture
def shop(folder: Folder) -> Shop:
    return Shop(folder)


@pytest.fixture
def local(disk: LocalFolder) -> Shop:
    return Shop(disk)
