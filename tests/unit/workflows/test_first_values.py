# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from airflow_provider_raybatch.workflows.errors import WorkflowError
from airflow_provider_raybatch.workflows.first_values import first_values
from tests.support.approved import AssertSentences
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


def test_columns_that_do_not_fit(assert_sentences: AssertSentences) -> None:
    assert_sentences(lambda **columns: list(first_values([ROWS], columns)), WorkflowError)
