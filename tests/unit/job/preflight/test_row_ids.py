# SPDX-License-Identifier: Apache-2.0
"""Each of the user's ids must be there once; the check reads each row once."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_raybatch.contract.failures import PreflightError
from airflow_provider_raybatch.job.input import reader as reading
from airflow_provider_raybatch.job.input.survey import Source
from airflow_provider_raybatch.job.preflight.input_check import check_ids
from tests.support.sources import look_at_source
from tests.support.specs import spec

ROWS = 20_000
GROUP = 10_000


def source_of(path: Path) -> Source:
    prompt = {"prompt": "{row.text}"}
    return look_at_source(spec(source=[str(path)], id_column="a.b", **prompt))


def parquet(folder: Path, ids: list[Any]) -> Source:
    table = pa.table({"a.b": ids, "text": ["x"] * len(ids), "a": [{"b": 1, "c": 2}] * len(ids)})
    pq.write_table(table, folder / "x.parquet", row_group_size=GROUP)
    return source_of(folder / "x.parquet")


def jsonl(folder: Path, ids: list[Any]) -> Source:
    rows = [json.dumps({"a.b": one, "text": "x"}) if one != "no row" else "{" for one in ids]
    (folder / "x.jsonl").write_text("\n".join(rows))
    return source_of(folder / "x.jsonl")


@pytest.mark.parametrize(
    ("write", "ids"),
    [(parquet, range(ROWS)), (jsonl, range(ROWS)), (jsonl, [1, "no row", 2, "no row"]), (jsonl, [])],
)
def test_ids_that_are_all_different_pass(tmp_path: Path, write: Any, ids: Any) -> None:
    assert check_ids(write(tmp_path, list(ids)), "a.b", None) is None


@pytest.mark.parametrize("write", [parquet, jsonl])
@pytest.mark.parametrize(("place", "twin"), [(1, 0), (GROUP + 5, 7), (ROWS - 1, GROUP)])
def test_two_rows_of_one_id_are_named(tmp_path: Path, write: Any, place: int, twin: int) -> None:
    ids = list(range(ROWS))
    ids[place] = ids[twin]
    sentence = re.escape(f"id_column: rows {twin} and {place} both have '{twin}' in column 'a.b'; ids name")
    with pytest.raises(PreflightError, match=sentence):
        check_ids(write(tmp_path, ids), "a.b", None)


@pytest.mark.parametrize("write", [parquet, jsonl])
def test_the_first_row_without_an_id_is_named(tmp_path: Path, write: Any) -> None:
    ids: list[int | None] = list(range(ROWS))
    ids[GROUP + 3] = ids[ROWS - 1] = None
    with pytest.raises(PreflightError, match=f"id_column: row {GROUP + 3} has no value in column 'a.b'"):
        check_ids(write(tmp_path, ids), "a.b", None)


def test_empty_id_column_counts_as_missing(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("a.b,text\n1,x\n,x\n,x\n")
    with pytest.raises(PreflightError, match=r"^id_column: row 1 has no value in column 'a\.b'"):
        check_ids(source_of(tmp_path / "x.csv"), "a.b", None)


def test_each_row_group_is_opened_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Decoded anew for each of its chunks, a group of a million rows would cost its size squared."""
    source = parquet(tmp_path, list(range(ROWS)))
    opened: list[object] = []
    open_file = reading.open_file

    def opening(*arguments: Any) -> Any:
        opened.append(arguments)
        return open_file(*arguments)

    monkeypatch.setattr(reading, "open_file", opening)
    check_ids(source, "a.b", None)
    assert len(opened) == ROWS // GROUP
