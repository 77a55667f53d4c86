# SPDX-License-Identifier: Apache-2.0
"""Real Ray clusters of one node, which end with the test run, however it ends."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_raybatch.cluster.jobs_api.address import ClusterAddress
from airflow_provider_raybatch.cluster.local.head import RayHead
from tests.support.local_ray import local_ray
from tests.support.s3_server import S3Server, serving

CPUS = 2


@dataclass(frozen=True)
class RayCluster:
    """A running cluster; `python` is the interpreter that its jobs run on."""

    address: ClusterAddress
    python: str

    @property
    def url(self) -> str:
        return self.address.url


@contextmanager
def started(python: str = sys.executable, **options: object) -> Iterator[RayCluster]:
    # Long, because a busy machine takes a multiple of the usual ten seconds.
    with RayHead(python=python, num_cpus=CPUS, startup_timeout=300, **options) as address:
        yield RayCluster(address, python)


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[RayCluster]:
    """A cluster of 2 CPUs without a token; all tests share it, so leave nothing running on it."""
    with started(with_token=False) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def token_ray_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayCluster]:
    """A cluster that requires its token, which is in the address.

    It starts by its full path, and the `python` on its PATH has no Ray.
    """
    folder = tmp_path_factory.mktemp("path")
    bare = getattr(sys, "_base_executable", sys.executable)
    _command(folder / "bin/python", f'exec {shlex.quote(bare)} "$@"')
    path = f"{folder / 'bin'}:{os.defpath}"
    _command(folder / "ray", f'PATH={shlex.quote(path)} exec {shlex.quote(sys.executable)} "$@"')
    with started(str(folder / "ray")) as cluster:
        yield cluster


def _command(path: Path, line: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{line}\n")
    path.chmod(0o755)


@pytest.fixture(scope="session")
def cluster_python() -> str:
    """An interpreter of another version than this one, with Ray and without Airflow."""
    default = Path(__file__).parents[2] / ".venv-ray/bin/python"
    python = Path(os.environ.get("RAYBATCH_CLUSTER_PYTHON", default))
    if not python.exists():
        pytest.skip(f"there is no {python}")
    return str(python)


@pytest.fixture(scope="module")
def other_python_ray_cluster(cluster_python: str) -> Iterator[RayCluster]:
    """A cluster with another Python version than this process."""
    with started(cluster_python, with_token=False) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def start_ray():
    """A context manager that starts one more cluster: ``with start_ray(dashboard_port=...) as cluster``."""
    return started


@pytest.fixture(scope="session")
def modules(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder from which this process and the workers import."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("modules")
        patch.syspath_prepend(str(folder))
        patch.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)  # Ray's workers inherit it
        yield folder


@pytest.fixture(scope="session")
def s3() -> Iterator[S3Server]:
    """An S3 server; each test makes a bucket of its own."""
    with serving() as server:
        yield server


@pytest.fixture(scope="session")
def ray_here(modules: Path) -> Iterator[Any]:
    """A Ray of 2 CPUs in this process, so that the job can run here; all tests share it."""
    with local_ray() as ray:
        yield ray
