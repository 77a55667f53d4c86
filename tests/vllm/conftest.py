# SPDX-License-Identifier: Apache-2.0
"""Settings that must exist before a test imports vLLM."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# PyTorch imports it deep inside vLLM's calls, where Python 3.11 can't compile the module as pytest rewrites
# it.
import hypothesis.strategies  # noqa: F401
import pytest

# A cache of the tests' own, set before the import of the hub's client, which reads these once.
_cache = tempfile.mkdtemp(prefix="raybatch-hub-")
os.environ.update(HF_HUB_CACHE=_cache, HF_HUB_OFFLINE="1")
# What vLLM notes there about a model's class takes it another import of itself, so it stays where it is when
# tests move our own cache.
os.environ.setdefault("VLLM_CACHE_ROOT", str(Path("~/.cache/vllm").expanduser()))


@pytest.fixture(scope="session")
def hub_cache() -> Path:
    """The folder of models of the hub, by commit."""
    return Path(_cache)


@pytest.fixture(scope="session")
def llm() -> Iterator[Any]:
    """vLLM's own ``LLM`` with the demo's model, which writes JSON as jobs have it written.

    With room for adapters, which changes nothing for rows without one.
    """
    from tests.support.beside_vllm import LORA, own_llm
    from tests.support.real_model import ARGS, MODEL

    compact = {"backend": "xgrammar", "disable_any_whitespace": True}
    with own_llm(model=str(MODEL), structured_outputs_config=compact, **ARGS, **LORA) as made:
        yield made


def pytest_unconfigure(config: pytest.Config) -> None:
    shutil.rmtree(_cache, ignore_errors=True)
