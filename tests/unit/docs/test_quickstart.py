# SPDX-License-Identifier: Apache-2.0
"""The quickstart's own file, question and table: the whole job in this process, with its `echo` engine."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import duckdb
import pytest

from tests.support.whole_job import infer, without_cluster

from ...support.documents import DOCS, blocks

PAGE = "quickstart.md"
QUICKSTART = (DOCS / PAGE).read_text(encoding="utf-8")


def only(language: str) -> str:
    (block,) = [block for block in blocks(language) if block.page.name == PAGE]
    return block.text


# What the page says to change for a file of one's own.
OWN_FILE = "Review text,id\nVery good,7\nBad,8\n"
OWN_LINES = {
    "SOURCE": 'FOLDER + "/own.csv"',
    "QUESTION": "\"Is this review good or bad? {row['Review text']}\"",
    "LABELS": '["good", "bad"]',
}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's home with the quickstart's file."""
    monkeypatch.setenv("HOME", str(tmp_path))
    without_cluster(monkeypatch)
    place = tmp_path / "raybatch-quickstart"
    place.mkdir()
    (place / "companies.csv").write_text(only("csv"), encoding="utf-8")
    return place


def table(home: Path, code: str) -> tuple[list[dict[str, Any]], list[str]]:
    """Run the page's DAG file and its query; return the table's rows, and the labels that were asked for."""
    found: dict[str, Any] = {}
    exec(re.sub(r"\n(\w+)\(\)\n*$", r"\nmade = \1()", code), found)
    label = found["made"].get_task("label")
    summary = infer(label, destination=f"{home}/labels/20260131T020000")  # as Airflow renders it
    found["made"].get_task("to_table").python_callable({"manifest_uri": summary.manifest_uri})
    (query,) = re.findall(r"\.sql\('([^']+)'\)", QUICKSTART)
    with duckdb.connect(f"{home}/warehouse.duckdb", read_only=True) as warehouse:
        rows = warehouse.sql(query)
        return [dict(zip(rows.columns, row, strict=True)) for row in rows.fetchall()], found["LABELS"]


def test_the_pages_csv_becomes_a_table(home: Path) -> None:
    rows, labels = table(home, only("python"))
    assert [next(iter(row)) for row in rows] == ["response"] * 5
    assert {(row["company"], row["city"]) for row in rows} >= {("Carrefour", "Massy"), ("SAP", "Walldorf")}
    assert {row["response"] for row in rows} <= set(labels)


@pytest.mark.parametrize("is_from_excel", [False, True])
def test_a_file_of_ones_own_becomes_a_table(home: Path, is_from_excel: bool) -> None:
    code = only("python")
    (home / "own.csv").write_text(OWN_FILE, encoding="utf-8")
    if is_from_excel:
        (options,) = re.findall(r"`(csv_options=\{.*\})` beside `source`", QUICKSTART)
        (home / "own.csv").write_text(OWN_FILE.replace(",", ";") + "Schön;9\n", encoding="cp1252")
        code = code.replace("source=SOURCE,", f"source=SOURCE, {options},")
    for name, value in OWN_LINES.items():
        code, changed = re.subn(rf"(?m)^{name} = .*$", lambda _, line=f"{name} = {value}": line, code)
        assert changed == 1, name
    assert not re.search("compan|city|Agriculture|Banking|Energy|Retail|Software|Transport", code)
    rows, _ = table(home, code)
    more = [("Schön", "9")] if is_from_excel else []
    assert [(row["Review text"], row["id"]) for row in rows] == [("Very good", "7"), ("Bad", "8"), *more]
    assert {row["response"] for row in rows} <= {"good", "bad"}
