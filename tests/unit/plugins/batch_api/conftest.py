# SPDX-License-Identifier: Apache-2.0
"""The Batch API on folders of each kind, beside a real Airflow that knows its users."""

from __future__ import annotations

import pytest

from airflow_provider_raybatch.batches.known import KnownDocuments
from airflow_provider_raybatch.plugins.batch_api import auth, runs
from airflow_provider_raybatch.storage.folder import Folder, LocalFolder
from tests.support.airflow_server import Server
from tests.support.batch_server import BatchServer, batch_server


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Airflow's answers to another test are forgotten."""
    monkeypatch.setattr(auth, "_USERS", KnownDocuments())
    monkeypatch.setattr(runs, "_TAKING_RUNS", KnownDocuments())


@pytest.fixture
def api(
    request: pytest.FixtureRequest,
    server: Server,
    folder: Folder,
    monkeypatch: pytest.MonkeyPatch,
) -> BatchServer:
    """The Batch API on a disk and in a bucket."""
    s3 = None if isinstance(folder, LocalFolder) else request.getfixturevalue("s3_server")
    return batch_server(monkeypatch, folder, s3)


@pytest.fixture
def on_disk(server: Server, disk: LocalFolder, monkeypatch: pytest.MonkeyPatch) -> BatchServer:
    """The Batch API on a disk."""
    return batch_server(monkeypatch, disk)
