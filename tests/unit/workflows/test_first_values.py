# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from airflow_provider_raybatch.workflows.errors import WorkflowError
from airflow_provider_raybatch.workflows.first_values import first_values
from tests.unit.workflows.datasets import batch

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


@pytest.mark.parametrize(
    ("columns", "sentence"),
    [
        ({"answer": ["draft_answer", "odd"]}, "columns: 'odd' is not a column of the dataset"),
        ({"a": ["score"], "b": ["score"]}, "columns: 'score' is named twice; put it into one of the new"),
        ({"a": []}, "columns: 'a' replaces no column; name at least one."),
        ({"id": ["draft_answer"]}, "columns: 'id' is in the dataset already"),
        (
            {"a": ["draft_answer", "score"]},
            r"columns: 'a' can't hold draft_answer \(string\), score \(int64\); name columns of one type\.",
        ),
    ],
)
def test_columns_that_do_not_fit(columns: dict[str, list[str]], sentence: str) -> None:
    with pytest.raises(WorkflowError, match=sentence):
        list(first_values([ROWS], columns))
