# SPDX-License-Identifier: Apache-2.0
"""Judging, tested with simulated judges of a known bias. All seeds are fixed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from airflow_provider_raybatch.contract.row_template import RowTemplate
from airflow_provider_raybatch.dataset import Rows
from airflow_provider_raybatch.dataset.errors import UsageError
from airflow_provider_raybatch.workflows.filters import SchemaCheck
from airflow_provider_raybatch.workflows.pairwise import PAIR_COLUMNS, PairwiseResult, both_orders, settle
from airflow_provider_raybatch.workflows.prompts import CHOICES, Rubric, pairwise_prompt, pairwise_sampling
from airflow_provider_raybatch.workflows.sift import Drop
from tests.support.approved import AssertSentences
from tests.support.datasets import batch, inferred

RUBRIC = Rubric("Is the answer correct?", {1: "wrong", 3: "partly", 5: "right"})


def judged(rng: np.random.Generator, better: float, bias: float, pairs: int = 400) -> PairwiseResult:
    """Return the verdicts of a judge who is right in 80 % and else takes the first place with 0.5 + `bias`.

    :param better: share of pairs in which the candidate's answer is the better one.
    """
    rows: list[dict[str, Any]] = []
    for number in range(pairs):
        candidate_is_better = rng.random() < better
        for order in ("ab", "ba"):
            right_place = "A" if candidate_is_better == (order == "ab") else "B"
            guess = "A" if rng.random() < 0.5 + bias else "B"
            rows.append({
                "pair": str(number),
                "order": order,
                "response": right_place if rng.random() < 0.8 else guess,
            })
    return settle([pa.RecordBatch.from_pylist(rows)])


def test_both_orders_cancel_a_position_bias() -> None:
    """A judge who always guesses the first place favours neither candidate; the first order alone would."""
    rng = np.random.default_rng(1)
    results = [judged(rng, 0.5, bias=0.5) for _ in range(100)]
    covered = sum(
        one.win_rate is not None and one.win_rate.low <= 0.5 <= one.win_rate.high for one in results
    )
    assert covered >= 93
    assert np.mean([one.p_value <= 0.05 for one in results]) <= 0.05 + 2 * np.sqrt(0.05 * 0.95 / 100)
    assert all(one.bias_p_value < 0.001 for one in results)
    # 80 % of the choices go evenly to both places, and all others to the first.
    assert np.mean([one.chose_first for one in results]) == pytest.approx(0.6, abs=0.01)
    # The orders disagree if the better answer is in the second place and the judge guesses.
    assert np.mean([one.agreement.estimate for one in results]) == pytest.approx(0.8, abs=0.01)


def test_an_unbiased_judge_is_not_called_biased() -> None:
    rng = np.random.default_rng(2)
    results = [judged(rng, 0.7, bias=0.0) for _ in range(100)]
    assert np.mean([one.bias_p_value <= 0.05 for one in results]) <= 0.05 + 2 * np.sqrt(0.05 * 0.95 / 100)
    assert all(one.wins > one.losses and one.p_value < 0.05 for one in results)


def test_judge_by_position_alone_decides_nothing() -> None:
    rows = [{"pair": str(n), "order": order, "response": "A"} for n in range(30) for order in ("ab", "ba")]
    result = settle([pa.RecordBatch.from_pylist(rows)])
    assert (result.wins, result.losses, result.ties, result.disagreements) == (0, 0, 30, 30)
    assert (result.win_rate, result.p_value, result.chose_first) == (None, 1.0, 1.0)
    assert result.agreement.estimate == 0
    assert result.bias_p_value < 0.001


def test_choices_of_a_pair() -> None:
    choices = {
        "won": ("A", " b "),
        "lost": ('"B"', "A"),
        "tied": ("tie", "TIE"),
        "disagree": ("A", "tie"),
        "no choice": ("A", "The first one."),
        "one order": ("A", None),
    }
    rows = [
        {"pair": pair, "order": order, "response": response}
        for pair, both in choices.items()
        for order, response in zip(("ab", "ba"), both, strict=True)
    ]
    result = settle([pa.RecordBatch.from_pylist(rows[:5]), pa.RecordBatch.from_pylist(rows[5:])])
    assert (result.wins, result.losses, result.ties) == (1, 1, 2)
    assert (result.disagreements, result.incomplete) == (1, 2)


def test_pairs_in_both_orders(tmp_path: Path) -> None:
    ours = inferred(
        tmp_path / "a", [{"id": n, "question": f"q{n}", "response": f"ours {n}"} for n in range(3)]
    )
    theirs = inferred(tmp_path / "b", [{"id": n, "response": f"theirs {n}"} for n in (2, 0, 7)])
    found = both_orders(Rows(ours).batches(), Rows(theirs).batches(), key="id")
    rows = pa.Table.from_batches(found).sort_by([("pair", "ascending"), ("order", "ascending")]).to_pylist()
    assert [tuple(row.values()) for row in rows] == [
        ("0", "ab", "q0", "ours 0", "theirs 0"),
        ("0", "ba", "q0", "theirs 0", "ours 0"),
        ("2", "ab", "q2", "ours 2", "theirs 2"),
        ("2", "ba", "q2", "theirs 2", "ours 2"),
    ]
    assert tuple(rows[0]) == PAIR_COLUMNS
    assert RowTemplate(pairwise_prompt()).columns == ["question", "first", "second"]
    assert "Answer A:\nours 0\n\nAnswer B:\ntheirs 0" in RowTemplate(pairwise_prompt()).render(rows[0])
    assert pairwise_sampling()["structured_outputs"] == {"choice": CHOICES}


def test_pairs_of_one_column() -> None:
    """The question may be the response itself, and both sides may be empty."""
    rows, nothing = (
        batch(id=["a"], text=["x"]),
        batch(id=pa.array([], pa.string()), text=pa.array([], pa.string())),
    )
    for ours, theirs, count in ((rows, rows, 2), (rows, nothing, 0), (nothing, rows, 0)):
        pairs = both_orders([ours], [theirs], "id", question="text", response="text")
        assert pa.Table.from_batches(pairs).num_rows == count


def test_a_rubric_is_a_prompt_a_grammar_and_a_check() -> None:
    prompt = RowTemplate(RUBRIC.prompt(question="topic", answer="an answer"))
    assert prompt.columns == ["topic", "an answer"]
    assert "1: wrong\n3: partly\n5: right" in prompt.text
    assert RUBRIC.sampling()["structured_outputs"] == {"json": RUBRIC.schema()}
    check = SchemaCheck(RUBRIC.schema(), column="judged")
    good, bad = '{"reason": "It is.", "score": 5}', '{"reason": "Nearly.", "score": 4}'
    checked = check(batch(judged=[good, bad]))
    assert checked.batch.select(["reason", "score"]).to_pylist()[0] == {"reason": "It is.", "score": 5}
    assert checked.drops == [
        None,
        Drop("schema", "the response does not fit the schema ($.score: 4 is not one of [1, 3, 5])"),
    ]


def test_what_is_refused(assert_sentences: AssertSentences) -> None:
    assert_sentences(lambda made: made, UsageError)
