# SPDX-License-Identifier: Apache-2.0
"""What a step's condition, check and requests mean for rows that other jobs and steps have asked."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_raybatch.contract.failures import RaybatchError
from airflow_provider_raybatch.job.preflight import input_check

from .place import Place

DRAFT: dict[str, Any] = {"name": "draft", "prompt": "draft {row.text}"}
JUDGE: dict[str, Any] = {"name": "judge", "prompt": "judge {row.draft_response}"}


def test_a_row_that_is_left_out_gets_no_stored_answer(place: Place) -> None:
    rows = [{"text": "same", "asks": True}, {"text": "same", "asks": False}]
    steps = [{**DRAFT, "when": ["asks", "==", True]}, {"name": "end", "prompt": "{row.text}"}]
    for number, requests in ((0, 3), (1, 0)):
        found, asked = place.run(number, rows, steps)
        assert [row["draft_response"] for row in found] == ["draft same", None]
        assert asked == requests


def test_rows_that_are_left_out_refuse_no_job(place: Place) -> None:
    rows = [*({"text": None} for _ in range(9)), {"text": "one"}]
    steps = [{**DRAFT, "when": ["text", "is not null"]}, {**JUDGE, "when": ["text", "is not null"]}]
    found, asked = place.run(0, rows, steps, max_errors=0)
    assert [row["judge_response"] for row in found] == [None] * 9 + ["judge draft one"]
    assert asked == 2


def test_what_one_step_goes_on_with_is_no_answer_to_another(place: Place) -> None:
    rows = [{"text": "no JSON"}]
    lenient = {"name": "draft", "prompt": "{row.text}", "response_format": "json_object"}
    end = {"name": "end", "prompt": "{row.text}"}
    found, _ = place.run(0, rows, [{**lenient, "on_rejected": "continue"}, end])
    assert "not JSON" in found[0]["draft_rejected"]
    strict = [lenient, end]
    with pytest.raises(RaybatchError, match="max_error"):
        place.run(1, rows, strict, max_errors=0)
    with pytest.raises(RaybatchError, match="max_error"):  # the parts of the same task
        place.run(2, rows, strict, max_errors=0, to=0)


def test_votes_on_one_question_are_asked_each(place: Place) -> None:
    rows = [{"text": f"text {number}"} for number in range(3)]
    steps = [{"name": f"vote_{number}", "prompt": "vote {row.text}"} for number in range(3)]
    sampled = {"sampling": {"temperature": 0.8}}
    assert place.run(0, rows, steps, **sampled)[1] == 9
    assert place.run(1, rows, steps, **sampled)[1] == 0
    assert place.run(2, rows, steps[:2], **sampled)[1] == 0


def test_a_job_that_regenerates_stores_all_steps(place: Place) -> None:
    rows = [{"text": "one"}]
    assert place.run(0, rows, [DRAFT, JUDGE], on_clear="regenerate")[1] == 2
    assert place.run(1, rows, [DRAFT, JUDGE])[1] == 0


def test_rows_without_columns_go_through_steps(place: Place) -> None:
    steps = [{**DRAFT, "when": ["text", "is not null"]}, {**JUDGE, "when": ["text", "is not null"]}]
    found, asked = place.run(0, [{}, {}, {}, {"text": "one"}], steps)
    assert [row["judge_response"] for row in found] == [None] * 3 + ["judge draft one"]
    assert asked == 2


def test_a_step_alone_has_its_condition_and_sampling(place: Place) -> None:
    step = {**DRAFT, "when": ["text", "!=", "two"], "sampling": {"max_tokens": 1}}
    found, asked = place.run(0, [{"text": "one"}, {"text": "two"}], [step])
    assert [row["draft_response"] for row in found] == ["draft", None]
    assert asked == 1
    assert place.run(1, [{"text": "one"}, {"text": "two"}], [step])[1] == 0


def test_a_step_has_an_adapter_of_its_own(place: Place) -> None:
    rows = [{"text": "one"}]
    critic = {**JUDGE, "adapter": "/adapters/critic"}
    found, asked = place.run(0, rows, [DRAFT, critic])
    assert (found[0]["draft_response"], asked) == ("draft one", 2)
    assert found[0]["judge_response"] == "[/adapters/critic] judge draft one"
    other, asked = place.run(1, rows, [DRAFT, {**JUDGE, "adapter": "/adapters/other"}])
    assert (other[0]["judge_response"], asked) == ("[/adapters/other] judge draft one", 1)
    assert place.run(2, rows, [DRAFT, JUDGE])[1] == 1
    found, asked = place.run(3, rows, [DRAFT, critic], adapter="/adapters/writer")
    assert found[0]["draft_response"] == "[/adapters/writer] draft one"
    assert (found[0]["judge_response"], asked) == ("[/adapters/critic] judge [/adapters/writer] draft one", 2)


def test_a_late_column_is_asked_about(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows without the column are as rows where it is null."""
    monkeypatch.setattr(input_check, "_SAMPLE_ROWS", 2)
    rows = [{"text": "one"}, {"text": "two"}, {"text": "three", "note": "late"}, {"text": "four"}]
    found, asked = place.run(0, rows, [{**DRAFT, "prompt": "{row.note}", "when": ["note", "is not null"]}])
    assert [(row["note"], row["draft_response"]) for row in found] == [
        (None, None),
        (None, None),
        ("late", "late"),
        (None, None),
    ]
    assert asked == 1


@pytest.mark.parametrize("column", ["judge_response", "Judge_Response", "draft_response"])
def test_a_late_column_is_not_lost_where_its_step_is_skipped(
    place: Place, column: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Preflight sees the first rows of JSONL alone."""
    monkeypatch.setattr(input_check, "_SAMPLE_ROWS", 2)
    never = ["text", "==", "never"]
    steps = [{**DRAFT, "when": never}, {**JUDGE, "when": never}, {"name": "end", "prompt": "{row.text}"}]
    steps[2]["when"] = never
    rows = [*({"text": "same"} for _ in range(2)), {"text": "late", column: "mine"}]
    manifest = place.job(0, rows, steps=steps, max_errors=1)
    assert len(place.rows(manifest)) == 2
    (letter,) = place.letters(manifest)
    assert f"the row has a column {column!r}, which is also an output column; rename" in letter["reason"]
    assert "mine" in str(letter)
