# SPDX-License-Identifier: Apache-2.0
"""What a step's condition, check and requests mean for rows that other jobs and steps have asked."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

from airflow_provider_raybatch.contract.failures import RaybatchError
from airflow_provider_raybatch.contract.report import parse_report
from airflow_provider_raybatch.job.phases import publishing
from airflow_provider_raybatch.job.preflight import input_check
from tests.support.tools import ADD, WEATHER

from .place import Place

DRAFT: dict[str, Any] = {"name": "draft", "prompt": "draft {row.text}"}
TYPED = {"type": "object", "properties": {"of": {"type": "string"}}, "required": ["of"]}
JUDGE: dict[str, Any] = {"name": "judge", "prompt": "judge {row.draft_response}"}


def test_a_row_that_is_left_out_gets_no_stored_answer(place: Place) -> None:
    rows = [{"text": "same", "asks": True}, {"text": "same", "asks": False}]
    steps = [{**DRAFT, "when": ["asks", "==", True]}, {"name": "end", "prompt": "{row.text}"}]
    for number, requests in ((0, 2), (1, 0)):
        found, asked = place.run(number, rows, steps)
        assert [row["draft_response"] for row in found] == ["draft same", None]
        assert asked == requests


@pytest.mark.parametrize("left_out", [{"text": None}, {}], ids=["null", "no column"])
def test_rows_that_are_left_out_refuse_no_job(place: Place, left_out: dict[str, Any]) -> None:
    rows = [*(left_out for _ in range(9)), {"text": "one"}]
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


def test_a_step_has_tools_of_its_own(place: Place) -> None:
    """A later step reads the calls; a step without tools asks a request of its own."""
    rows = [{"text": "one"}]
    act = {"name": "act", "prompt": "{row.text}", "tools": [ADD], "tool_choice": "add"}
    told = {"name": "told", "prompt": "{row.act_tool_calls}"}
    plain = {"name": "plain", "prompt": "{row.text}", "when": ["act_tool_calls", "is not null"]}
    found, asked = place.run(0, rows, [act, told, plain])
    (call,) = found[0]["act_tool_calls"]
    assert (call["name"], json.loads(call["arguments"]).keys()) == ("add", {"a", "b"})
    assert json.loads(found[0]["told_response"]) == [call]
    assert (found[0]["plain_response"], asked) == ("one", 3)
    assert not {"told_tool_calls", "plain_tool_calls"} & found[0].keys()
    other, asked = place.run(1, rows, [{**act, "tools": [WEATHER], "tool_choice": "weather"}, told, plain])
    assert (other[0]["act_tool_calls"][0]["name"], asked) == ("weather", 2)


def test_completions_that_are_asked_about_call_tools(place: Place) -> None:
    draft = {**DRAFT, "sampling": {"temperature": 1, "n": 2}}
    act = {"name": "act", "prompt": "{row.draft_response}", "each": "draft", "tools": [ADD, WEATHER]}
    rows = [{"text": "add one"}, {"text": "nothing"}]
    found, _ = place.run(0, rows, [draft, act])
    names = [
        [[call["name"] for call in one["tool_calls"] or ()] for one in row["act_completions"]]
        for row in found
    ]
    assert names == [[["add"], ["add"]], [[], []]]


def test_rows_choose_adapters_and_sampling(place: Place) -> None:
    """Each step asks by what the row has, unless the step says otherwise."""
    rows = [{"text": "one", "who": "a", "own": {"max_tokens": 2}}, {"text": "one", "who": None, "own": None}]
    steps = [{**DRAFT, "sampling_column": "own"}, JUDGE, {**DRAFT, "name": "end", "adapter": "/adapters/end"}]
    chosen = {"adapters": {"a": "/adapters/a"}, "adapter_column": "who"}
    found, asked = place.run(0, rows, steps, **chosen)
    names = ("draft_response", "judge_response", "end_response")
    assert [[row[name] for name in names] for row in found] == [
        ["[a] draft", "[a] judge [a] draft", "[/adapters/end] draft one"],
        ["draft one", "judge draft one", "[/adapters/end] draft one"],
    ]
    assert asked == 5
    assert place.run(1, rows, steps, **chosen)[1] == 0
    assert place.run(2, rows, steps, **{**chosen, "sampling_column": "own"})[1] == 2


@pytest.mark.parametrize("own", [{"n": 2}, '{"n": 2}'])
def test_all_rows_of_a_step_have_as_many_completions(place: Place, own: Any) -> None:
    rows = [{"text": "one", "own": own}, {"text": "two", "own": None}]
    several = {**DRAFT, "sampling_column": "own", "sampling": {"n": 2, "temperature": 1}}
    assert [len(row["draft_completions"]) for row in place.run(0, rows, [several])[0]] == [2, 2]
    with pytest.raises(RaybatchError, match="column 'own' has n=2, and all rows of a step have as many"):
        place.run(1, rows, [{**DRAFT, "sampling_column": "own"}], max_errors=0)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"sampling_column": "own"}, "judge: sampling_column: none of the first 2 rows can be asked"),
        ({"adapter": None}, "judge: adapter_column: none of the first 2 rows can be asked"),
    ],
)
def test_later_steps_are_looked_at_before_the_first_is_asked(
    place: Place, given: dict[str, Any], why: str
) -> None:
    rows = [{"text": text, "own": "no JSON", "who": "unknown"} for text in ("one", "two")]
    chosen = {"adapters": {"a": "/adapters/a"}, "adapter_column": "who"} if "adapter" in given else {}
    first = {**DRAFT, "adapter": "/adapters/first"}
    with pytest.raises(RaybatchError, match=why):
        place.run(0, rows, [first, {**JUDGE, **given}], **chosen)


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


LABELS = {"sampling": {"structured_outputs": {"choice": ["one", "two"]}}}
REPORTED: list[dict[str, Any]] = [
    {"name": "label", "prompt": "{row.text}", **LABELS},
    {"name": "typed", "prompt": "type {row.text}", "response_format": TYPED},
    {"name": "vote", "prompt": "{row.text}", "sampling": {"temperature": 1, "n": 2}},
    {"name": "end", "system_prompt": "Be brief.", "prompt": "a b {row.label_response}"},
]
"""Whose last step leaves out rows, as may those before it."""


@pytest.mark.parametrize("published", [True, False])
@pytest.mark.parametrize("skipped", [["end"], ["typed", "end"], [step["name"] for step in REPORTED]])
def test_a_report_tells_of_each_step(
    place: Place, skipped: list[str], published: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [{"text": ["one", "two"][n % 2], "asks": n < 2} for n in range(8)]
    names = [step["name"] for step in REPORTED]
    when = {"when": ["asks", "==", True]}
    steps = [{**step, **(when if step["name"] in skipped else {})} for step in REPORTED]
    data: list[dict[str, Any]] = []
    if published:
        data = place.rows(place.job(0, rows, steps=steps))
        report = parse_report(place.folder.read("report.json"), "report.json")
    else:
        monkeypatch.setattr(publishing, "prepare", lambda *_: 1 / 0)
        with pytest.raises(RaybatchError):
            place.job(0, rows, steps=steps)
        (file,) = (one.path for one in place.folder.list("_raybatch") if one.path.endswith("report.json"))
        report = parse_report(place.folder.read(file), file)
        assert [step["name"] for step in report.arguments["steps"]] == names
    for sample in report.samples:
        asked = [name for name in names if sample.ordinal < 2 or name not in skipped]
        assert [one.step for one in sample.steps] == asked
        text = rows[sample.ordinal]["text"]
        told = {str(one.step): one for one in sample.steps}
        label = told["label"].response if "label" in told else ""
        requests = (text, f"type {text}", text, f"system: Be brief.\n\nuser: a b {label}")
        assert {(name, one.request) for name, one in told.items()} <= set(zip(names, requests, strict=True))
        for row in data[sample.ordinal : sample.ordinal + 1]:
            assert {name: row[f"{name}_response"] for name in told} == {
                name: one.response for name, one in told.items()
            }
        assert all(one.input_tokens and one.output_tokens for one in sample.steps)
        assert (sample.request, sample.response) == (None, None)
    assert [one.ordinal for one in report.samples] == list(range(8))
    if not published:
        return
    assert (report.prompt_tokens, report.output_tokens, report.answers) == ([], [], None)
    counts = [2 if name in skipped else 8 for name in names]
    told_of = report.answers_by_step
    assert [one.step for one in told_of] == names
    for of in ("prompt_tokens", "output_tokens"):
        assert [sum(one.rows for one in getattr(step, of)) for step in told_of] == counts
        assert all(one.first for step in told_of for one in getattr(step, of))
    labels = Counter(row["label_response"] for row in data if row["label_response"] is not None)
    assert {one.text: one.rows for one in told_of[0].answers or ()} == labels
    typed = told_of[1].answers
    assert typed is None or sum(one.rows for one in typed) == counts[1]
    completions = [count * (1 + (name == "vote")) for name, count in zip(names, counts, strict=True)]
    assert [step.finish_reasons for step in told_of] == [{"stop": count} for count in completions]
    assert report.finish_reasons == {"stop": sum(completions)}


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
