# SPDX-License-Identifier: Apache-2.0
"""Folders of each kind, and a small internet."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.folders import (  # noqa: F401 - fixtures
    brief,
    disk,
    fast_retries,
    folder,
    once,
    proxy,
    s3_server,
)
from tests.support.web import Web, a_web


@pytest.fixture
def web(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Web]:
    with a_web(tmp_path, monkeypatch) as web:
        web.host("hub.example", "8.8.8.8")
        yield web
