# SPDX-License-Identifier: Apache-2.0
"""Parsing a DAG imports Airflow and the Airflow side alone, and nothing that takes seconds or gigabytes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HEAVY = ("boto3", "duckdb", "numpy", "pandas", "pyarrow", "ray", "torch", "transformers", "vllm")
AIRFLOW_SIDE = (
    "batch_api", "cli", "decorators", "hooks", "links", "operators", "plugins", "sensors", "triggers",
)  # fmt: skip
IMPORT_IT = f"""
import importlib, importlib.util, json, pkgutil, sys
names = ["airflow_provider_raybatch." + name for name in ("get_provider_info", "dataset", "retries")]
for folder in {AIRFLOW_SIDE!r}:
    package = importlib.import_module("airflow_provider_raybatch." + folder)
    names += [found.name for found in pkgutil.walk_packages(package.__path__, package.__name__ + ".")]
for name in names:
    importlib.import_module(name)
print(json.dumps({{
    "imported": names,
    "where": importlib.import_module("airflow_provider_raybatch").__file__,
    "heavy": [name for name in {HEAVY!r} if name in sys.modules],
    "installed": [name for name in {HEAVY!r} if importlib.util.find_spec(name)],
}}))
"""


def import_the_airflow_side(python: Path, home: Path) -> dict[str, Any]:
    env = {"AIRFLOW_HOME": str(home), "PATH": "/usr/bin:/bin"}
    # Isolated and outside of the checkout, so that Python imports the installed package.
    done = subprocess.run(
        [python, "-I", "-c", IMPORT_IT], capture_output=True, text=True, env=env, cwd=home, timeout=120
    )
    assert done.returncode == 0, done.stderr
    imports: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return imports


def test_wheel_imports_where_nothing_heavy_is_installed(light_python: Path, tmp_path: Path) -> None:
    imports = import_the_airflow_side(light_python, tmp_path)
    assert "site-packages" in imports["where"]
    assert not {"pyarrow", "ray", "torch", "vllm"} & set(imports["installed"])
    assert {name.split(".")[1] for name in imports["imported"]} == {
        *AIRFLOW_SIDE,
        "dataset",
        "get_provider_info",
        "retries",
    }


def test_airflow_side_imports_no_heavy_installed_package(tmp_path: Path) -> None:
    imports = import_the_airflow_side(Path(sys.executable), tmp_path)
    assert {"pyarrow", "ray", "vllm"} <= set(imports["installed"])
    assert imports["heavy"] == []


def test_airflow_side_imports_on_the_next_airflow(pre_python: Path, tmp_path: Path) -> None:
    imports = import_the_airflow_side(pre_python, tmp_path)
    assert "airflow_provider_raybatch.operators.ray_batch" in imports["imported"]


@pytest.mark.parametrize("layer", ["contract", "job", "cluster"])
def test_other_layers_import_without_airflow(layer: str, tmp_path: Path) -> None:
    code = f"import sys, airflow_provider_raybatch.{layer}; sys.exit('airflow' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-I", "-c", code], capture_output=True, text=True, cwd=tmp_path, timeout=60
    )
    assert done.returncode == 0, done.stderr
