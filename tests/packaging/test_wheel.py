# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import subprocess
import zipfile
from importlib.metadata import PathDistribution
from pathlib import Path

from airflow_provider_raybatch import __version__


def metadata_of(wheel: Path) -> PathDistribution:
    (info,) = (entry for entry in zipfile.Path(wheel).iterdir() if entry.name.endswith(".dist-info"))
    return PathDistribution(info)


def test_wheel_holds_the_typed_package_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert "airflow_provider_raybatch/py.typed" in names
    info = f"airflow_provider_raybatch-{__version__}.dist-info"
    assert {name.split("/")[0] for name in names} == {"airflow_provider_raybatch", info}
    assert f"{info}/licenses/LICENSE" in names
    templates = "airflow_provider_raybatch/report/templates"
    assert {f"{templates}/page.jinja", f"{templates}/style.css"} <= set(names)


def test_metadata_has_what_registries_need(wheel: Path) -> None:
    metadata = metadata_of(wheel).metadata
    assert (metadata["Name"], metadata["Version"], metadata["License-Expression"]) == (
        "airflow-provider-raybatch",
        __version__,
        "Apache-2.0",
    )
    assert "Framework :: Apache Airflow :: Provider" in metadata.get_all("Classifier")
    assert "airflow-provider" in metadata["Keywords"].split(",")


def test_core_dependencies_exclude_ray_vllm_and_pyarrow(wheel: Path) -> None:
    requires = metadata_of(wheel).requires or []
    core = {line.split(">")[0] for line in requires if "extra ==" not in line}
    assert core == {
        "apache-airflow",
        "asgiref",
        "cryptography",
        "httpx",
        "jinja2",
        "obstore",
        "pydantic",
        "rich",
    }


def test_airflow_finds_provider_and_plugin(wheel: Path) -> None:
    """Nothing else tells a worker's or an API server's Airflow of them."""
    found = {entry.group: entry.value for entry in metadata_of(wheel).entry_points}
    assert found == {
        "console_scripts": "airflow_provider_raybatch.cli.definition:main",
        "apache_airflow_provider": "airflow_provider_raybatch.get_provider_info:get_provider_info",
        "airflow.plugins": "airflow_provider_raybatch.plugins.raybatch:RayBatchPlugin",
    }


def test_installs_beside_airflow_alone(uv: Path, light_python: Path) -> None:
    checked = subprocess.run(
        [uv, "pip", "check", "--python", light_python], capture_output=True, text=True, timeout=60
    )
    assert checked.returncode == 0, checked.stderr


def test_airflow_lists_the_provider(light_python: Path, tmp_path: Path) -> None:
    command = [
        light_python.with_name("airflow"),
        "providers",
        "get",
        "airflow-provider-raybatch",
        "--output",
        "json",
    ]
    env = {"AIRFLOW_HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
    completed = subprocess.run(command, capture_output=True, text=True, env=env, timeout=120)
    assert completed.returncode == 0, completed.stderr
    (row,) = json.loads(completed.stdout)
    assert row["Provider"] == "airflow-provider-raybatch"
    assert row["Version"] == __version__
