# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from airflow_provider_raybatch.dataset.errors import UsageError
from airflow_provider_raybatch.workflows.rows import failed_rows, first_values, one_row_a_sample
from airflow_provider_raybatch.workflows.sift import DROP_COLUMNS
from tests.support.approved import AssertSentences
from tests.support.datasets import batch, inferred


def test_each_sample_becomes_a_row() -> None:
    samples = [[{"text": "a"}, {"text": "b"}], [], [{"text": None}], None]
    rows = batch(completions=samples, id=[1, 2, 3, 4], response=["a", None, None, None])
    (found,) = one_row_a_sample([rows])
    assert found.to_pylist() == [
        {"id": 1, "response": "a", "sample": 0},
        {"id": 1, "response": "b", "sample": 1},
        {"id": 3, "response": None, "sample": 0},
    ]


def test_single_samples_and_no_rows() -> None:
    (found,) = one_row_a_sample([batch(id=[1, 2], response=["a", "b"])])
    assert found["sample"].to_pylist() == [0, 0]
    none = batch(id=[1], completions=[[{"text": "a"}]], response=["a"]).slice(0, 0)
    (found,) = one_row_a_sample([none])
    assert found.schema.names == ["id", "response", "sample"]
    assert found.num_rows == 0


def test_failed_rows_are_dropped_rows(tmp_path: Path) -> None:
    letters = [
        {"ordinal": n, "step": "tokenize", "reason": "too long", "row": {"id": n, "at": "noon"}}
        for n in (3, 4)
    ]
    result = inferred(tmp_path, [{"id": 1, "response": "a"}], letters=letters)
    schema = pa.schema({"id": pa.int64(), "at": pa.timestamp("us"), "response": pa.string()})
    for name in DROP_COLUMNS:
        schema = schema.append(pa.field(name, pa.string()))
    (found,) = failed_rows(result, "judge", schema)
    assert found.schema == schema
    assert tuple(found.to_pylist()[1].values()) == (4, None, None, "judge", "tokenize", "too long")
    assert list(failed_rows(inferred(tmp_path / "good", [{"id": 1}]), "judge", schema)) == []


def test_what_is_refused(assert_sentences: AssertSentences) -> None:
    assert_sentences(lambda made: made, UsageError)


ROWS = batch(
    id=[1, 2, 3], draft_answer=["a", None, None], repair_answer=["A", "b", None], score=[5, None, None],
    second_score=[None, 3, None],
)  # fmt: skip


def test_each_row_has_the_first_value_that_it_has() -> None:
    wanted = {"answer": ["draft_answer", "repair_answer"], "score": ["score", "second_score"]}
    (found, empty) = first_values([ROWS, ROWS.slice(0, 0)], wanted)
    assert found.to_pylist() == [
        {"id": 1, "answer": "a", "score": 5},
        {"id": 2, "answer": "b", "score": 3},
        {"id": 3, "answer": None, "score": None},
    ]
    assert empty.schema == found.schema


def test_columns_that_do_not_fit(assert_sentences: AssertSentences) -> None:
    assert_sentences(lambda **columns: list(first_values([ROWS], columns)), UsageError)
