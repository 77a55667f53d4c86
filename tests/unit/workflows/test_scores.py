# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import math
import threading

import pytest

from airflow_provider_raybatch.dataset.errors import UsageError
from airflow_provider_raybatch.workflows.scores import (
    column_scores,
    exact_match,
    f1,
    numeric_equal,
    pass_at_k,
    score_answers,
)
from tests.support.approved import AssertSentences
from tests.support.datasets import batch


def test_numbers_of_a_job_are_scores() -> None:
    rows = batch(id=["a", "b"], score=[0.5, 2.0])
    assert {one.key: one.mean for one in column_scores([rows], "score", "id")} == {"a": 0.5, "b": 2.0}
    for value in (None, float("nan"), "high", True):
        with pytest.raises(UsageError, match=r"column: 'score' of row 'a' is .* and no finite number"):
            list(column_scores([batch(id=["a"], score=[value])], "score", "id"))


@pytest.mark.parametrize(
    ("prediction", "answer", "match", "overlap"),
    [
        ("The Sun.", "sun", 1, 1),
        ("a red  house", "Red house!", 1, 1),
        ("red house", "red car", 0, 0.5),
        ("", "sun", 0, 0),
        ("the", "a", 1, 1),
        ("no no yes", "no yes yes", 0, 2 / 3),
    ],
)
def test_exact_match_and_f1(prediction: str, answer: str, match: float, overlap: float) -> None:
    assert exact_match(prediction, answer) == match
    assert f1(prediction, answer) == pytest.approx(overlap)


@pytest.mark.parametrize(
    ("prediction", "answer", "equal"),
    [
        ("7", "7.0", 1),
        ("1,234.50", "1234.5", 1),
        ("1/2", "0.5", 1),
        ("7.", "7", 1),
        ("8", "7", 0),
        ("So the answer is $\\frac{1}{2}$.", "0.5", 1),
        ("The answer is 42.", "42", 1),
        ("The answer is 41.", "42", 0),
        ("I don't know", "42", 0),
        ("", "42", 0),
        ("1/0", "0", 0),
        ("$9^{9^{9^{9}}}$", "1", 0),
    ],
)
def test_numeric_equality(prediction: str, answer: str, equal: float) -> None:
    assert numeric_equal(prediction, answer) == equal


def test_numeric_equality_outside_of_the_main_thread() -> None:
    found: list[float] = []
    thread = threading.Thread(target=lambda: found.append(numeric_equal("It is $\\frac{3}{4}$", "0.75")))
    thread.start()
    thread.join(60)
    assert found == [1.0]


@pytest.mark.parametrize(
    ("samples", "correct", "k"), [(10, 3, 1), (10, 3, 5), (200, 17, 100), (5, 5, 5), (4, 0, 2)]
)
def test_pass_at_k_is_the_share_of_draws_with_a_correct_one(samples: int, correct: int, k: int) -> None:
    expected = 1 - math.comb(samples - correct, k) / math.comb(samples, k)
    assert pass_at_k(samples, correct, k) == pytest.approx(expected)


def test_answers_of_a_benchmark() -> None:
    samples = [[{"text": "4"}, {"text": "5"}], [{"text": None}, {"text": "6"}], None]
    rows = batch(id=["a", "b", "c"], answer=[4, 6, 8], response=["4", None, None], completions=samples)
    scored = list(score_answers([rows], numeric_equal, "id", completions="completions"))
    assert [(one.key, one.samples) for one in scored] == [("a", (1.0, 0.0)), ("b", (0.0, 1.0)), ("c", (0.0,))]
    assert (scored[0].mean, scored[0].passes(1), scored[0].passes(2)) == (0.5, 0.5, 1.0)
    assert [one.samples for one in score_answers([rows], numeric_equal, "id")] == [(1.0,), (0.0,), (0.0,)]


def test_what_is_refused(assert_sentences: AssertSentences) -> None:
    assert_sentences(lambda made: made, UsageError)
