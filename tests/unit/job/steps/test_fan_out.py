# SPDX-License-Identifier: Apache-2.0
"""A step asks about each completion of an earlier one, and ranks them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from airflow_provider_raybatch.contract.failures import RaybatchError
from tests.support.engine_log import engines

from .place import Place

SCORE = {"type": "object", "properties": {"score": {"type": "integer"}}, "required": ["score"]}
TITLE = {"type": "object", "properties": {"title": {"type": "string"}}, "required": ["title"]}
MANY = {"temperature": 1.0, "n": 4}
ONE = {"temperature": 0.0}
DRAFT: dict[str, Any] = {"name": "draft", "prompt": "a b {row.text}", "sampling": MANY}
JUDGE: dict[str, Any] = {
    "name": "judge",
    "prompt": "judge {row.draft_response}",
    "sampling": ONE,
    "each": "draft",
    "best": "score",
    "response_format": SCORE,
}
ROWS = [{"text": f"text {number}"} for number in range(6)]


def scores(row: dict[str, Any], step: str = "judge") -> list[int]:
    return [json.loads(one["text"])["score"] for one in row[f"{step}_completions"]]


def assert_ranked(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        ranks = scores(row)
        assert ranks == sorted(ranks, reverse=True)
        assert row["judge_score"] == ranks[0]
        assert row["draft_response"] == row["draft_completions"][0]["text"]
        assert row["judge_response"] == row["judge_completions"][0]["text"]
        assert sorted(one["candidate"] for one in row["judge_completions"]) == [0, 1, 2, 3]
        assert row["judge_candidate"] == row["judge_completions"][0]["candidate"]


def test_the_best_completion_is_the_rows_response(place: Place) -> None:
    alone, _ = place.run(0, ROWS, [DRAFT])
    rows, asked = place.run(1, ROWS, [DRAFT, JUDGE])
    assert asked == 4 * len(ROWS)  # the drafts were there
    assert_ranked(rows)
    assert any(row["judge_candidate"] for row in rows)
    for row, drafts in zip(rows, alone, strict=True):
        candidates = [one["candidate"] for one in row["judge_completions"]]
        texts = [one["text"] for one in drafts["draft_completions"]]
        assert [one["text"] for one in row["draft_completions"]] == [texts[place] for place in candidates]
        assert row["draft_output_tokens"] == drafts["draft_output_tokens"]


def test_answers_are_found_with_their_order(place: Place) -> None:
    rows, asked = place.run(0, ROWS, [DRAFT, JUDGE])
    assert asked == 5 * len(ROWS)
    again, asked = place.run(1, ROWS, [DRAFT, JUDGE])
    assert asked == 0
    for row in (*rows, *again):
        row.pop("judge_reused_from")
    assert again == rows
    other, asked = place.run(2, ROWS, [DRAFT, {**JUDGE, "prompt": "doubt {row.draft_response}"}], to=0)
    assert asked == 4 * len(ROWS)
    assert_ranked(other)


def test_a_later_step_reads_the_best_completion(place: Place) -> None:
    last = {"name": "last", "prompt": "polish {row.draft_response} {row.judge_score}", "sampling": ONE}
    rows, _ = place.run(0, ROWS, [DRAFT, JUDGE, last])
    assert_ranked(rows)
    for row in rows:
        assert row["last_response"] == f"polish {row['draft_response']} {row['judge_score']}"
    others, asked = place.run(1, ROWS, [DRAFT, JUDGE, {**last, "prompt": "end {row.draft_response}"}], to=0)
    assert asked == len(ROWS)
    assert [row["draft_completions"] for row in others] == [row["draft_completions"] for row in rows]


def test_good_completions_come_first_and_are_asked_about(place: Place) -> None:
    """The first one has as many words as it may have, and all others a word more."""
    draft = {**DRAFT, "prompt": "{row.text}", "on_truncated": "error"}
    draft["sampling"] = {"n": 3, "max_tokens": 4, "temperature": 0.0}
    rows, asked = place.run(0, [{"text": "a b c d"}, {"text": "a b c"}], [draft, JUDGE])
    assert asked == 2 + 1 + 3
    cut, whole = rows
    assert [one["rejected"] is None for one in cut["draft_completions"]] == [True, False, False]
    assert "cut off after 4 tokens" in cut["draft_completions"][1]["rejected"]
    assert (cut["draft_response"], cut["draft_rejected"], len(scores(cut))) == ("a b c d", None, 1)
    assert len(scores(whole)) == 3


def test_a_row_without_a_good_completion_fails(place: Place) -> None:
    draft = {**DRAFT, "prompt": "{row.text}", "on_truncated": "error"}
    draft["sampling"] = {"n": 3, "max_tokens": 2, "temperature": 0.0}
    with pytest.raises(RaybatchError, match="max_error"):
        place.run(0, [{"text": "a b c d"}], [draft, JUDGE], max_errors=0)
    goes_on = {**draft, "on_rejected": "continue"}
    rows, asked = place.run(1, [{"text": "a b c d"}], [goes_on, JUDGE])
    assert asked == 1 + 3  # without a good one, each is asked about
    assert "cut off" in rows[0]["draft_rejected"]
    judged_if_good = {**JUDGE, "when": ["draft_rejected", "is null"]}
    rows, asked = place.run(2, [{"text": "a b c d"}], [goes_on, judged_if_good])
    assert (asked, rows[0]["judge_score"], rows[0]["judge_completions"]) == (0, None, None)


def test_steps_between_keep_their_completions_beside_the_others(place: Place) -> None:
    titled = {**DRAFT, "response_format": TITLE}
    repair = {
        "name": "repair",
        "prompt": "repair {row.draft_title}",
        "sampling": ONE,
        "each": "draft",
    }
    judge = {**JUDGE, "prompt": "judge {row.repair_response} of {row.draft_title}", "each": "repair"}
    rows, asked = place.run(0, ROWS, [titled, repair, judge])
    assert asked == 9 * len(ROWS)
    assert_ranked(rows)
    for row in rows:
        titles = [json.loads(one["text"])["title"] for one in row["draft_completions"]]
        assert [one["text"] for one in row["repair_completions"]] == [f"repair {title}" for title in titles]
        assert (row["draft_title"], row["repair_response"]) == (titles[0], f"repair {titles[0]}")
    assert any(row["judge_candidate"] for row in rows)
    (*_, engine) = engines(place.root / "log")
    judged = {text for text, _ in engine.asked if text.startswith("judge")}
    titles = [json.loads(one["text"])["title"] for row in rows for one in row["draft_completions"]]
    assert judged == {f"judge repair {title} of {title}" for title in titles}  # each with its own draft


def test_log_probabilities_follow_their_completions(place: Place) -> None:
    draft = {**DRAFT, "sampling": {**MANY, "logprobs": 1}}
    rows, _ = place.run(0, ROWS, [draft, JUDGE, {"name": "last", "prompt": "{row.draft_response}"}])
    assert_ranked(rows)
    for row in rows:
        first = row["draft_completions"][0]
        assert (row["draft_logprobs"], row["draft_mean_logprob"]) == (
            first["logprobs"],
            first["mean_logprob"],
        )
        assert [one["token"].strip() for one in first["logprobs"]] == first["text"].split()
    assert place.run(1, ROWS, [draft, JUDGE, {"name": "last", "prompt": "{row.draft_response}"}])[1] == 0


def test_a_step_that_was_not_asked_has_no_completions(place: Place) -> None:
    rows = [{"text": "one", "asks": True}, {"text": "two", "asks": False}]
    draft = {**DRAFT, "when": ["asks", "==", True]}
    late = {**JUDGE, "when": ["text", "is not null"]}
    with pytest.raises(RaybatchError, match="max_error"):
        place.run(0, rows, [draft, late], max_errors=0)
    found, _ = place.run(0, rows, [draft, late], max_errors=1)
    assert [row["text"] for row in found] == ["one"]
    found, _ = place.run(1, rows, [draft, {**JUDGE, "when": ["asks", "==", True]}])
    assert [row["judge_score"] is None for row in found] == [False, True]


def test_a_request_that_fails_is_its_rows_dead_letter(place: Place) -> None:
    draft = {**DRAFT, "prompt": "{row.text}", "sampling": {"n": 2, "temperature": 0.0}}
    args = {"request_log": str(place.root / "log"), "fail_pattern": "judge bad #1"}
    rows = [{"text": "good"}, {"text": "bad"}]
    manifest = place.job(0, rows, steps=[draft, JUDGE], max_errors=1, engine_args=args)
    assert [row["text"] for row in place.rows(manifest)] == ["good"]
    (letter,) = place.letters(manifest)
    assert letter["step"] == "judge.engine"
    asked = [one["messages"][0]["content"] for one in json.loads(letter["request"])["each"]]
    assert asked == ["judge bad", "judge bad #1"]
