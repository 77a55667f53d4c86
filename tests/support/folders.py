# SPDX-License-Identifier: Apache-2.0
"""Folders of each kind."""

from __future__ import annotations

import contextlib
import resource
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_provider_raybatch.storage import errors
from airflow_provider_raybatch.storage.folder import Folder, LocalFolder
from airflow_provider_raybatch.storage.s3_folder import S3Folder
from tests.support.faulty_s3 import BRIEF, ONCE, Fault, FaultyS3, faulty
from tests.support.s3_server import S3Server, serving


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    with serving() as server:
        yield server


@pytest.fixture(params=["local", "s3"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Folder:
    """An empty folder of each kind."""
    if request.param == "local":
        return LocalFolder(str(tmp_path_factory.mktemp("folder") / "out"))
    server = request.getfixturevalue("s3_server")
    return S3Folder(server.new_bucket(), "a/out", server.credentials)


@pytest.fixture
def fast_retries(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> errors.RetryLimits:
    """Retry S3 in the usual way, but with pauses a hundred times shorter.

    Only where S3 may never answer is its answer given up soon: on a busy machine, any is late.
    """
    given = getattr(request.node, "callspec", None)
    faults = {Fault.SILENT} if given is None else {given.params.get("fault", Fault.SILENT)}
    answer = 0.3 if faults & {Fault.SILENT, Fault.LOST_SILENT} else 30
    short = errors.RetryLimits(
        connect=1, answer=answer, repeat=5, whole=120, first_pause=0.01, longest_pause=0.1
    )
    monkeypatch.setattr(errors, "RETRY_LIMITS", short)
    return short


@pytest.fixture
def brief(monkeypatch: pytest.MonkeyPatch) -> errors.RetryLimits:
    """Give up S3 soon."""
    monkeypatch.setattr(errors, "RETRY_LIMITS", BRIEF)
    return BRIEF


@pytest.fixture
def once(monkeypatch: pytest.MonkeyPatch) -> errors.RetryLimits:
    """Ask S3 once, and wait as long as it takes."""
    monkeypatch.setattr(errors, "RETRY_LIMITS", ONCE)
    return ONCE


@pytest.fixture
def proxy(s3_server: S3Server, fast_retries: errors.RetryLimits) -> Iterator[FaultyS3]:
    """A proxy before the S3 server, without faults at first."""
    with faulty(s3_server, slow=0.1) as proxy:
        yield proxy


@pytest.fixture
def disk(tmp_path: Path) -> LocalFolder:
    return LocalFolder(str(tmp_path / "out"))


@contextlib.contextmanager
def small_files(limit: int) -> Iterator[None]:
    """No file of this process may grow beyond `limit` bytes, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)
