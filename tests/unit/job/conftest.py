# SPDX-License-Identifier: Apache-2.0
"""Folders of each kind, a small internet, and places for whole jobs of the echo engine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.echo_place import EchoPlace
from tests.support.folders import (  # noqa: F401 - fixtures
    brief,
    disk,
    fast_retries,
    folder,
    once,
    proxy,
    s3_server,
)
from tests.support.repeated_task import RepeatedTask
from tests.support.web import Web, a_web
from tests.support.whole_job import without_cluster


@pytest.fixture
def web(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Web]:
    with a_web(tmp_path, monkeypatch) as web:
        web.host("hub.example", "8.8.8.8")
        yield web


@pytest.fixture
def task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RepeatedTask:
    without_cluster(monkeypatch)
    return RepeatedTask(tmp_path)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> EchoPlace:
    without_cluster(monkeypatch)
    return EchoPlace(tmp_path)
