# SPDX-License-Identifier: Apache-2.0
"""Keeps a test run away from the user's own Airflow."""

from __future__ import annotations

import gc
import multiprocessing
import os
import shutil
import tempfile
from collections.abc import Iterator

import pytest

_airflow_home = tempfile.mkdtemp(prefix="raybatch-airflow-")
# At import, before any test module imports Airflow, which reads these once.
os.environ["AIRFLOW_HOME"] = _airflow_home
os.environ["AIRFLOW__CORE__LOAD_EXAMPLES"] = "False"
# Workers that Ray starts in advance cost a small machine more than they save.
os.environ.update(RAY_enable_worker_prestart="0")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--approve", action="store_true", help="write the sentences of messages.txt anew")


def pytest_collection_finish() -> None:
    """What is imported and collected stays, and each full collection would walk its million objects."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 50)


@pytest.fixture(scope="module", autouse=True)
def same_processes() -> Iterator[None]:
    """No module leaves an engine's fork server to the next one, which may be any module."""
    before = multiprocessing.get_context("spawn")
    yield
    assert multiprocessing.get_context("spawn") is before


def pytest_unconfigure(config: pytest.Config) -> None:
    shutil.rmtree(_airflow_home, ignore_errors=True)
