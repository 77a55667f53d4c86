# SPDX-License-Identifier: Apache-2.0
"""What must be there before a test imports vLLM."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

# PyTorch imports it deep down in vLLM's calls, where Python 3.11 can't compile what pytest makes of it.
import hypothesis.strategies  # noqa: F401
import pytest

# The tests' own, and before the hub's client is imported, which reads these once.
_cache = tempfile.mkdtemp(prefix="raybatch-hub-")
os.environ.update(HF_HUB_CACHE=_cache, HF_HUB_OFFLINE="1")


@pytest.fixture(scope="session")
def hub_cache() -> Path:
    """The folder in which models of the hub lie, by commit."""
    return Path(_cache)


def pytest_unconfigure(config: pytest.Config) -> None:
    shutil.rmtree(_cache, ignore_errors=True)
