# SPDX-License-Identifier: Apache-2.0
"""The quickstart's own file, question and table: the whole job in this process, with its `echo` engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import pytest

from airflow_provider_raybatch.operators.arguments import ARGUMENTS, build_spec
from airflow_provider_raybatch.storage.folder import folder
from tests.support.whole_job import attempt, without_cluster

from ...support.documents import blocks

PAGE = "quickstart.md"


def only(language: str) -> str:
    (block,) = [block for block in blocks(language) if block.page.name == PAGE]
    return block.text


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's home with the quickstart's file."""
    monkeypatch.setenv("HOME", str(tmp_path))
    without_cluster(monkeypatch)
    place = tmp_path / "raybatch-quickstart"
    place.mkdir()
    (place / "companies.csv").write_text(only("csv"), encoding="utf-8")
    return place


def test_own_csv_becomes_own_table(home: Path) -> None:
    found: dict[str, Any] = {}
    exec(only("python").replace("\nindustries()", "\nmade = industries()"), found)
    label = found["made"].get_task("label")
    label.destination = f"{home}/industries/20260131T020000"  # as Airflow renders it
    spec = build_spec({name: getattr(label, name) for name in ARGUMENTS})
    document = spec.model_dump(mode="json", exclude={"submission", "schema_version"})
    (source,) = document.pop("source")
    summary = attempt(folder(document["destination"]), 0, source, **document)
    result = {"manifest_uri": summary.manifest_uri}
    assert found["made"].get_task("to_table").python_callable(result) == 5
    with duckdb.connect(f"{home}/warehouse.duckdb", read_only=True) as warehouse:
        rows = warehouse.sql("SELECT company, city, response FROM industries ORDER BY company").fetchall()
    assert [row[:2] for row in rows[:2]] == [("Carrefour", "Massy"), ("Deutsche Bahn", "Berlin")]
    assert {response for _, _, response in rows} <= set(found["INDUSTRIES"])
