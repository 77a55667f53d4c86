# SPDX-License-Identifier: Apache-2.0
"""One S3 server for all bad inputs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ...s3_server import S3Server, serving
from .place import Place


@pytest.fixture(scope="session")
def s3() -> Iterator[S3Server]:
    with serving() as server:
        yield server


@pytest.fixture
def place(tmp_path: Path, s3: S3Server, modules: Path) -> Place:
    return Place(tmp_path, s3, modules)
