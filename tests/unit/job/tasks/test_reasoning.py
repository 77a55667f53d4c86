# SPDX-License-Identifier: Apache-2.0
"""Jobs of a model that reasons: the response is what follows, and a row without an answer has none."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_raybatch.contract.failures import RaybatchError
from airflow_provider_raybatch.job.row import Completion, Response, RowFailure
from airflow_provider_raybatch.job.tasks.generate import Generate
from airflow_provider_raybatch.storage.folder import LocalFolder
from tests.support.echo_place import EchoPlace
from tests.support.simulated import ENDLESS
from tests.support.specs import spec

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
CHOICE = {"structured_outputs": {"choice": ["yes", "no"]}}
TEXTS = ["one two", "three", "one two", f"please {ENDLESS}", "four five six"]
ROWS = [{"text": text} for text in TEXTS]


def completion(text: str, reasoning: str | None = "hm", reason: str = "stop", **more: Any) -> Completion:
    return Completion(text, reason, 9, extra={"reasoning": reasoning, "reasoning_tokens": 3, **more})


def result(*made: Completion, **fields: Any) -> str:
    """Return ``ok``, or the step and the beginning of the reason of its failure."""
    task = Generate(spec(engine="vllm", model="m", **{"engine_args": {"reasoning_parser": "r1"}, **fields}))
    found = task.check(Response(made, 5), {})
    if not isinstance(found, RowFailure):
        return "ok"
    assert (found.input_tokens, found.output_tokens) == (5, 9 * len(made))
    return f"{found.step}: {found.reason}"


def test_an_answer_after_a_reasoning_is_good() -> None:
    assert result(completion("yes")) == "ok"
    assert result(completion("yes", None)) == "ok"
    assert result(completion("", None)) == "ok"
    assert result(completion("yes"), sampling=CHOICE) == "ok"
    assert result(completion('{"city": "Bonn"}'), response_format=SCHEMA) == "ok"


@pytest.mark.parametrize("fields", [{}, {"response_format": "json_object"}, {"sampling": CHOICE}])
def test_a_reasoning_that_never_ends_is_no_response(fields: dict[str, Any]) -> None:
    """VLLM's grammar begins after it, so such a text is unconstrained, and ends with ``stop``."""
    assert result(completion("", '{"city": 1}'), **fields).startswith(
        "parse: the response has reasoning and no answer after it: "
    )
    assert "hm" in result(completion("yes"), completion(" \n"), **fields)


def test_a_text_that_is_cut_off_while_reasoning_is_kept() -> None:
    """As other cut texts are; where an answer must have a form, an empty one has not."""
    assert result(completion("", reason="length")) == "ok"
    cut = "parse: the response was cut off while the model reasoned, after 9 tokens, so it has no answer; "
    assert result(completion("", reason="length"), sampling=CHOICE).startswith(cut)
    assert result(completion("", reason="length"), response_format="json_object").startswith(cut)
    late = result(completion("", reason="length"), on_truncated="error")
    assert late.startswith("length: the response was cut off after 9 tokens")


def test_a_choice_that_no_grammar_forced_is_noticed() -> None:
    assert (
        result(completion("<b>yes"), sampling=CHOICE)
        == "parse: the response is not one of the choices: '<b>yes'"
    )
    assert result(completion("ye", reason="length"), sampling=CHOICE).startswith(
        "parse: the response is not one of the choices, cut off by max_tokens: 'ye'"
    )


def test_a_wrong_parser_is_named_with_its_remedy() -> None:
    found = result(
        completion("<think>a</think>b", None, reasoning_problem="leaves '<think>' in the response")
    )
    assert found == (
        "parse: reasoning_parser 'r1' leaves '<think>' in the response; name the parser of the model's "
        "family: '<think>a</think>b'"
    )


def test_other_jobs_have_no_such_column_or_check() -> None:
    task = Generate(spec(engine="vllm", model="m"))
    assert "reasoning" not in task.column_names
    assert not isinstance(task.check(Response((Completion("", "stop", 1),), 1), {}), RowFailure)
    kept = Generate(spec(engine="ray_data_llm", model="m", engine_args={"reasoning_parser": "qwen3"}))
    assert "reasoning" not in kept.column_names


def test_a_property_may_be_called_reasoning_where_no_column_is() -> None:
    schema = {"type": "object", "properties": {"reasoning": {"type": "string"}}}
    assert Generate(spec(response_format=schema)).column_names[-1] == "reasoning"
    with pytest.raises(RaybatchError, match="property 'reasoning' would be the column 'reasoning', which"):
        spec(response_format=schema, engine_args={"reasoning_parser": "x"})


def asks(place: EchoPlace, **fields: Any) -> dict[str, Any]:
    args = {"reasoning_parser": "qwen3", "request_log": str(place.root / "log")}
    return {"engine_args": args, "reuse": str(place.root / "store"), "max_errors": 2, **fields}


def test_a_whole_job_has_its_reasoning_in_columns(place: EchoPlace) -> None:
    """Equal rows, a later job and a row without an answer have what they have without reasoning."""
    manifest = place.job(0, ROWS, **asks(place, sampling={"temperature": 0}))
    rows = place.rows(manifest)
    assert [row["response"] for row in rows] == ["one two", "three", "one two", "four five six"]
    assert rows[0]["reasoning"] == "The prompt has 2 words."
    assert [row["output_tokens"] - row["reasoning_tokens"] for row in rows] == [2, 1, 2, 3]
    assert manifest.tokens.reasoning == sum(row["reasoning_tokens"] for row in rows) == 20
    assert (manifest.counts.duplicates, manifest.counts.errors_by_step) == (1, {"parse": 1})
    (letter,) = place.letters(manifest)
    assert letter["reason"].startswith("the response has reasoning and no answer after it")
    assert place.generated() == 4
    place.folder = LocalFolder(str(place.root / "again"))
    again = place.job(1, ROWS, **asks(place, sampling={"temperature": 0}))
    assert (again.counts.reused, again.tokens.reasoning) == (4, 20)
    assert [row["reasoning"] for row in place.rows(again)] == [row["reasoning"] for row in rows]
    assert place.generated() == 5  # the row without an answer


def test_jobs_without_reasoning_do_not_get_its_responses(place: EchoPlace) -> None:
    """And the reverse: no stored response lacks the columns of a job that reuses it."""
    for number, (parser, reused) in enumerate([("qwen3", 0), (None, 0), ("qwen3", 4), (None, 5)]):
        place.folder = LocalFolder(str(place.root / f"out-{number}"))
        args = {**asks(place)["engine_args"], "reasoning_parser": parser}
        manifest = place.job(number, ROWS, **asks(place, engine_args=args, sampling={"temperature": 0}))
        assert manifest.counts.reused == reused
        assert (manifest.tokens.reasoning is None) is (parser is None)
        assert all(("reasoning" in row) is (parser is not None) for row in place.rows(manifest))


def test_each_completion_has_its_reasoning(place: EchoPlace) -> None:
    manifest = place.job(0, ROWS[:2], **asks(place, sampling={"n": 2, "max_tokens": 6}))
    for row in place.rows(manifest):
        assert [one["reasoning_tokens"] for one in row["completions"]] == [5, 5]
        assert {one["reasoning"] for one in row["completions"]} == {row["reasoning"]}
    assert manifest.tokens.reasoning == 20
    assert manifest.finish_reasons == {"length": 3, "stop": 1}


def test_typed_columns_are_of_the_answer(place: EchoPlace) -> None:
    manifest = place.job(0, ROWS, **asks(place, response_format=SCHEMA))
    rows = place.rows(manifest)
    assert all(row["city"] and row["reasoning"] for row in rows)
    assert manifest.counts.errors_by_step == {"parse": 1}


def test_calls_of_tools_are_an_answer(place: EchoPlace) -> None:
    tool = {"type": "function", "function": {"name": "one", "parameters": {"type": "object"}}}
    (row,) = place.rows(place.job(0, ROWS[:1], **asks(place, tools=[tool], tool_choice="required")))
    assert row["reasoning"] == "The prompt has 2 words."
    assert [call["name"] for call in row["tool_calls"]] == ["one"]


def test_a_budget_and_the_template_shorten_the_reasoning(place: EchoPlace) -> None:
    short = {"thinking_token_budget": 2, "max_tokens": 3}
    (row,) = place.rows(place.job(0, ROWS[:1], **asks(place, sampling=short)))
    assert (row["reasoning"], row["response"], row["finish_reason"]) == ("The prompt", "one", "length")
    cut = place.job(1, ROWS[:1], **asks(place, sampling={"max_tokens": 4}))
    (row,) = place.rows(cut)
    assert (row["reasoning"], row["response"], row["finish_reason"]) == ("The prompt has 2", "", "length")
    off = {"chat_template_kwargs": {"enable_thinking": False}}
    (row,) = place.rows(place.job(2, ROWS[:1], **asks(place, **off)))
    assert (row["reasoning"], row["reasoning_tokens"], row["response"]) == (None, None, "one two")
