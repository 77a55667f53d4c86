# SPDX-License-Identifier: Apache-2.0
"""Columns of steps that are missing or taken, and conditions that no value can fulfil, are refused early."""

from __future__ import annotations

import datetime
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_raybatch.contract.failures import PreflightError, SpecError
from airflow_provider_raybatch.job.request.render import render_all
from airflow_provider_raybatch.job.row import RowFailure
from airflow_provider_raybatch.job.tasks.registry import task_of
from tests.support.approved import AssertSentences
from tests.support.sources import look_at_source
from tests.support.specs import spec

SCHEMA = {
    "type": "object",
    "properties": {
        "score": {"type": "integer"},
        "parts": {"type": "array", "items": {"type": "string"}},
        "place": {"type": "object", "properties": {"town": {"type": "string"}}},
    },
}
DAY = datetime.date(2026, 1, 31)
COLUMNS = {
    "text": pa.array(["a"]),
    "large": pa.array(["a"], pa.large_string()),
    "word": pa.array(["a"]).dictionary_encode(),
    "whole": pa.array([1], pa.uint8()),
    "float": pa.array([1.5], pa.float32()),
    "decimal": pa.array([Decimal("1.5")]),
    "flag": pa.array([True]),
    "empty": pa.nulls(1),
    "day": pa.array([DAY]),
    "time": pa.array([0], pa.timestamp("us", "UTC")),
    "lasts": pa.array([datetime.timedelta(1)]),
    "bytes": pa.array([b"a"]),
    "list": pa.array([["a"]]),
    "struct": pa.array([{"a": 1}]),
}


def look(path: Path, *when: Any) -> int:
    """Return how many rows are to do."""
    draft = {"name": "draft", "prompt": "{row.text}", "response_format": SCHEMA}
    steps = [draft, {"name": "judge", "prompt": "{row.text}", "when": list(when)}]
    return look_at_source(spec(source=[str(path)], steps=steps)).rows


def refused(path: Path, *when: Any) -> str:
    with pytest.raises(PreflightError) as caught:
        look(path, *when)
    return str(caught.value).removeprefix("steps: judge: when: ")


@pytest.fixture
def parquet(tmp_path: Path) -> Path:
    pq.write_table(pa.table(COLUMNS), tmp_path / "in.parquet")
    return tmp_path / "in.parquet"


@pytest.mark.parametrize(
    ("value", "comparable"),
    [
        ("a", ["text", "large", "word", "draft_response"]),
        (1, ["whole", "float", "decimal", "draft_score", "draft_output_tokens"]),
        (1.5, ["whole", "float", "decimal", "draft_score", "draft_output_tokens"]),
        (True, ["flag"]),
    ],
)
@pytest.mark.parametrize("is_list", [False, True])
def test_only_columns_of_its_kind_have_a_value(
    parquet: Path, value: Any, comparable: list[str], is_list: bool
) -> None:
    others = ["draft_response", "draft_score", "draft_output_tokens", "draft_parts", "draft_place"]
    for column in (*COLUMNS, *others):
        when = (column, "in", [value]) if is_list else (column, "!=", value)
        if column in (*comparable, "empty"):
            look(parquet, when)
        else:
            assert f"no row fulfils a comparison with {[value] if is_list else value!r}" in refused(
                parquet, when
            )


def test_the_sentence_has_column_value_and_remedy(parquet: Path, assert_sentences: AssertSentences) -> None:
    assert_sentences(lambda when: refused(parquet, when))


def test_what_may_hold_is_left_to_the_rows(parquet: Path) -> None:
    conditions = ("day", "is not null"), ("list", "is null"), ("text", "in", []), ("whole", "in", ["a", 1])
    assert look(parquet, *conditions) == 1


def test_columns_of_csv_are_text(tmp_path: Path) -> None:
    path = tmp_path / "in.csv"
    path.write_text("text,score\na,4\n")
    look(path, ("score", "==", "4"))
    assert refused(path, ("score", ">=", 4)).startswith("column 'score' is text, so no row")


def test_days_of_folders_are_dates(tmp_path: Path) -> None:
    (tmp_path / "day=2026-01-31").mkdir()
    pq.write_table(pa.table({"text": ["a"], "day": ["monday"]}), tmp_path / "day=2026-01-31" / "in.parquet")
    assert "has the type date32" in refused(tmp_path, ("day", "==", "2026-01-31"))


def test_one_file_with_the_right_type_is_enough(tmp_path: Path) -> None:
    for name, score in (("1", ["4"]), ("2", [4])):
        pq.write_table(pa.table({"text": ["a"], "score": score}), tmp_path / f"{name}.parquet")
    for value in ("4", 4):
        look(tmp_path, ("score", "==", value))
    assert "column 'score' is a number or text" in refused(tmp_path, ("score", "==", True))


@pytest.mark.parametrize(
    ("values", "comparable"),
    [
        (["a", None], ["a"]),
        ([1, 2.5], [1]),
        ([1, "a"], ["a", 1, True]),
        ([None, None], ["a", 1, True]),
        ([True], [True]),
        ([[1]], []),
        ([{"a": 1}], []),
    ],
    ids=str,
)
def test_the_first_rows_of_jsonl_tell_its_types(
    tmp_path: Path, values: list[Any], comparable: list[Any]
) -> None:
    path = tmp_path / "in.jsonl"
    path.write_text("".join(json.dumps({"text": "a", "x": value}) + "\n" for value in values))
    for value in ("a", 1, True):
        if any(value is one for one in comparable):
            look(path, ("x", "==", value))
        else:
            assert "so no row fulfils" in refused(path, ("x", "==", value))


SCORE = {"type": "object", "properties": {"score": {"type": "integer"}}}
RESPONSE = {"type": "object", "properties": {"response": {"type": "string"}}}
DRAFT = {"name": "draft", "prompt": "{row.text}", "response_format": SCORE}
JUDGE = {"name": "judge", "prompt": "{row.draft_response}"}


def check_steps(folder: Path, row: dict[str, Any], *steps: dict[str, Any], **fields: Any) -> None:
    path = folder / "in.jsonl"
    path.write_text(json.dumps({"text": "a", **row}) + "\n")
    look_at_source(spec(source=[str(path)], steps=list(steps or (DRAFT, JUDGE)), **fields))


def test_each_mistake_has_a_remedy_of_steps(tmp_path: Path, assert_sentences: AssertSentences) -> None:
    assert_sentences(
        lambda row, steps, fields: check_steps(tmp_path, row, *steps, **fields), (PreflightError, SpecError)
    )


def test_a_late_row_with_a_steps_column_fails_with_its_remedy() -> None:
    first, _ = spec(steps=[DRAFT, JUDGE]).questions()
    (failure,) = render_all(task_of(first).renderer(), [{"text": "a", "draft_score": 1}])
    assert isinstance(failure, RowFailure)
    assert failure.reason == (
        "the row has a column 'draft_score', which is also an output column; rename the step 'draft'"
    )
