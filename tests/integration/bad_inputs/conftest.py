# SPDX-License-Identifier: Apache-2.0
"""Fixtures of all bad inputs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.s3_server import S3Server

from .place import Place


@pytest.fixture
def place(tmp_path: Path, s3: S3Server, modules: Path) -> Place:
    return Place(tmp_path, s3, modules)
