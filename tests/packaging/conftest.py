# SPDX-License-Identifier: Apache-2.0
"""The wheel for users, and the environments into which it is installed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.browser import browser as browser

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def root() -> Path:
    return ROOT


@pytest.fixture(scope="session")
def uv() -> Path:
    return ROOT / ".tools/bin/uv"


@pytest.fixture(scope="session")
def wheel(uv: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built with this environment's pinned build tool: nothing unpinned may be fetched."""
    out = tmp_path_factory.mktemp("dist")
    build = [
        uv,
        "build",
        "--wheel",
        "--no-build-isolation",
        "--python",
        sys.executable,
        "--out-dir",
        out,
        ROOT,
    ]
    subprocess.run(build, check=True, timeout=120)
    (built,) = out.glob("*.whl")
    return built


@pytest.fixture(scope="session")
def light_python(uv: Path, wheel: Path) -> Path:
    """Python of an environment with only Airflow, the provider's core dependencies and the built wheel."""
    python = ROOT / ".venv-light/bin/python"
    install = [
        uv,
        "pip",
        "install",
        "--quiet",
        "--python",
        python,
        "--no-deps",
        "--reinstall",
        "--offline",
        wheel,
    ]
    subprocess.run(install, check=True, timeout=120)
    return python


@pytest.fixture(scope="session")
def pre_python() -> Path:
    """Python of the environment with Airflow's newest pre-release."""
    return ROOT / ".venv-pre/bin/python"
