# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.whole_job import without_cluster

from .place import Place


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with pytest.MonkeyPatch.context() as patch:
        without_cluster(patch)
        yield Place(tmp_path)
