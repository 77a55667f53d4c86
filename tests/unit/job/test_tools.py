# SPDX-License-Identifier: Apache-2.0
"""A job whose model calls tools keeps every promise of text generation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_raybatch.contract.base import parse
from airflow_provider_raybatch.contract.failures import RaybatchError
from airflow_provider_raybatch.contract.manifest import BatchManifest, Summary
from airflow_provider_raybatch.job import driver
from airflow_provider_raybatch.storage.folder import Folder
from tests.support.engine_log import engines
from tests.support.publishing import rows_of
from tests.support.reading import as_jsonl
from tests.support.tools import ADD, WEATHER
from tests.support.whole_job import attempt, without_cluster

FIELDS: dict[str, Any] = {"prompt": "{row.text}", "tools": [ADD, WEATHER], "sampling": {"temperature": 0}}
TEXTS = ["add 1 and 2", "the weather", "hello", "the weather", "add 3 and 4", "hello"]


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    without_cluster(monkeypatch)
    (tmp_path / "in.jsonl").write_bytes(as_jsonl([{"id": n, "text": text} for n, text in enumerate(TEXTS)]))
    return str(tmp_path / "in.jsonl")


def rows(place: Folder, summary: Summary) -> list[dict[str, Any]]:
    return rows_of(
        place, parse(BatchManifest, place.read(summary.manifest_uri.removeprefix(f"{place.uri}/")))
    )


def names(found: list[dict[str, Any]]) -> list[Any]:
    return [row["tool_calls"] and [call["name"] for call in row["tool_calls"]] for row in found]


def asked(log: Path) -> int:
    return sum(len(engine.asked) for engine in engines(log))


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_calls_are_published_and_resumed(
    folder: Folder, source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Equal requests are asked once, the retry asks nothing again, nor does the next run with a store."""
    fields = {**FIELDS, "destination_format": kind, "engine_args": {"request_log": str(tmp_path / "log")}}
    fields["reuse"] = str(tmp_path / "store")
    with monkeypatch.context() as patch:
        patch.setattr(driver, "prepare", lambda *_: 1 / 0)
        with pytest.raises((RaybatchError, ZeroDivisionError)):
            attempt(folder, 0, source, **fields)
    found = rows(folder, attempt(folder, 1, source, **fields))
    assert names(found) == [["add"], ["weather"], None, ["weather"], ["add"], None]
    assert [row["response"] for row in found] == ["", "", "hello", "", "", "hello"]
    assert [row["finish_reason"] for row in found].count("tool_calls") == 4
    assert set(json.loads(found[0]["tool_calls"][0]["arguments"])) == {"a", "b"}
    again = rows(folder, attempt(folder, 2, source, **fields, token="r2", on_clear="keep"))
    assert [row["tool_calls"] for row in again] == [row["tool_calls"] for row in found]
    assert asked(tmp_path / "log") == len(set(TEXTS))
    plain = rows(folder, attempt(folder, 3, source, **{**fields, "tools": None}, token="r3"))
    assert "tool_calls" not in plain[0]
    assert asked(tmp_path / "log") == 2 * len(set(TEXTS))


def test_poison_row_of_tools_is_a_dead_letter(folder: Folder, source: str) -> None:
    args = {"fail_pattern": "weather"}
    summary = attempt(folder, 0, source, **FIELDS, engine_args=args, max_errors=2, tool_choice="required")
    assert [row["id"] for row in rows(folder, summary)] == [0, 2, 4, 5]
    assert (summary.rows, summary.errors) == (4, 2)
