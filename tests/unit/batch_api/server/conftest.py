# SPDX-License-Identifier: Apache-2.0
"""The Batch API on folders of each kind, beside a real Airflow that knows its users."""

from __future__ import annotations

import pytest

from airflow_provider_raybatch.batch_api.server import access, runs
from airflow_provider_raybatch.batch_api.store.store import KnownDocuments
from airflow_provider_raybatch.storage.folder import Folder, LocalFolder
from tests.support.airflow_server import Server
from tests.support.batch_server import BatchServer, batch_server
from tests.support.folders import disk, folder, s3_server  # noqa: F401 - fixtures


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Airflow's answers to another test are forgotten."""
    monkeypatch.setattr(access, "_USERS", KnownDocuments())
    monkeypatch.setattr(runs, "_TAKING_RUNS", KnownDocuments())


@pytest.fixture
def api(
    request: pytest.FixtureRequest,
    server: Server,
    folder: Folder,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> BatchServer:
    """The Batch API on a disk and in a bucket."""
    s3 = None if isinstance(folder, LocalFolder) else request.getfixturevalue("s3_server")
    return batch_server(monkeypatch, folder, s3)


@pytest.fixture
def on_disk(
    server: Server,
    disk: LocalFolder,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> BatchServer:
    """The Batch API on a disk."""
    return batch_server(monkeypatch, disk)
