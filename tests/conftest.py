# SPDX-License-Identifier: Apache-2.0
"""Keeps a test run away from the user's own Airflow."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import tempfile
from collections.abc import Iterator
from typing import Any

import pytest

_DAG_RUNS = "unit/operators/dag_runs/"
_ALSO_THERE = {
    "unit/hooks/test_left_clusters.py": _DAG_RUNS,
    "unit/operators/own_clusters/test_shared_example.py": _DAG_RUNS,
}
"""Tests that run DAGs in Airflow, too; its first run takes 20 seconds of CPU in each process."""
_SIDE_BY_SIDE = (
    "integration/end_to_end/",
    "integration/resume/",
    "integration/",
    "vllm/",
    "unit/cluster/local/",
    "unit/docs/",
    "unit/job/engine/",
    "unit/job/planning/",
    _DAG_RUNS,
    "unit/plugins/",
    "unit/test_examples.py",
)
"""Where tests share what takes long to start, or look at all processes of the machine."""

_airflow_home = tempfile.mkdtemp(prefix="raybatch-airflow-")
# At import, before any test module imports Airflow, which reads these once.
os.environ["AIRFLOW_HOME"] = _airflow_home
os.environ["AIRFLOW__CORE__LOAD_EXAMPLES"] = "False"
# Workers that Ray starts in advance cost a small machine more than they save.
os.environ.update(RAY_enable_worker_prestart="0")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--approve", action="store_true", help="write the sentences of messages.txt anew")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With ``--dist loadscope``, tests of each folder above run in one process, one after the other.

    xdist's own groups have no effect with pytest 9.2, which names tests in another way than xdist 3.8
    expects.
    """
    if config.getvalue("dist") != "loadscope":
        return None
    from xdist.scheduler import LoadScopeScheduling

    class ByFolder(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            path = nodeid.removeprefix("tests/")
            found = (place for place in _SIDE_BY_SIDE if path.startswith(place))
            return _ALSO_THERE.get(path.partition("::")[0]) or next(found, nodeid)

    return ByFolder(config, log)


@pytest.fixture(scope="module", autouse=True)
def same_processes() -> Iterator[None]:
    """No module leaves an engine's fork server to the next one, which may be any module."""
    before = multiprocessing.get_context("spawn")
    yield
    assert multiprocessing.get_context("spawn") is before


def pytest_unconfigure(config: pytest.Config) -> None:
    shutil.rmtree(_airflow_home, ignore_errors=True)
