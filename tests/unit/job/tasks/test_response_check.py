# SPDX-License-Identifier: Apache-2.0
"""A row fails if its request was given up, or its response should be JSON and is not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.job.row import Completion, Response, RowFailure
from airflow_provider_raybatch.job.tasks.registry import task_of
from airflow_provider_raybatch.job.tasks.response_check import checked
from tests.support.specs import spec as spec_of

SCHEMA = {"structured_outputs": {"json": {"type": "object"}}}
CHOICE = {"structured_outputs": {"choice": ["a", "b"]}}


def spec(**fields: Any) -> BatchInferenceSpec:
    return spec_of(engine="vllm", model="m", **fields)


def response(*texts: str, reason: str = "stop") -> Response:
    return Response(tuple(Completion(text, reason, 1) for text in texts), 1)


@pytest.mark.parametrize(
    ("job", "row", "good"),
    [
        pytest.param({}, {}, True, id="nobody asks"),
        pytest.param({"sampling": SCHEMA}, {}, False, id="the job asks"),
        pytest.param({}, SCHEMA, False, id="the row asks"),
        pytest.param({"sampling": SCHEMA}, CHOICE, True, id="the row asks for something else"),
        pytest.param({"response_format": "json_object"}, CHOICE, False, id="the format asks"),
        pytest.param({"sampling": SCHEMA}, {"temperature": 0}, False, id="the row says nothing of it"),
    ],
)
def test_text_where_json_was_asked(job: dict[str, Any], row: dict[str, Any], good: bool) -> None:
    assert isinstance(checked(response("no json"), spec(**job), row), Response) is good


def test_on_truncated_error_fails_a_row_that_is_cut_off() -> None:
    cut = response("half a", reason="length")
    assert checked(cut, spec(on_truncated="keep"), {}) is cut
    failure = checked(cut, spec(on_truncated="error"), {})
    assert isinstance(failure, RowFailure)
    assert (failure.step, failure.output_tokens) == ("length", 1)
    assert "cut off after 1 token; raise sampling.max_tokens" in failure.reason
    whole = response("a whole")
    assert checked(whole, spec(on_truncated="error"), {}) is whole


def test_good_json_stays_as_it_is() -> None:
    answer = response('{"a": 1}')
    assert checked(answer, spec(sampling=SCHEMA), {}) is answer


@pytest.mark.parametrize(
    ("texts", "reason"),
    [
        (['{"a": NaN}'], "the response is not JSON (NaN is not a JSON value): '{\"a\": NaN}'"),
        (['{"a": -Infinity}'], "the response is not JSON (-Infinity is not a JSON value)"),
        (['{"a": 1}', '{"a": '], "the response is not JSON, cut off by max_tokens ("),
        (["[" * 100_000], "the response is not JSON, cut off by max_tokens ("),
    ],
    ids=["Python's own", "negative", "the second of two", "a model that repeats itself"],
)
def test_what_is_not_json_fails_its_row(texts: list[str], reason: str) -> None:
    ending = "length" if "cut off" in reason else "stop"
    failure = checked(response(*texts, reason=ending), spec(sampling=SCHEMA), {})
    assert isinstance(failure, RowFailure)
    assert (failure.step, failure.input_tokens, failure.output_tokens) == ("parse", 1, len(texts))
    assert failure.reason.startswith(reason)


SIZE = {"type": "object", "properties": {"size": {"type": "integer"}}, "not": {"required": ["none"]}}


def test_json_that_breaks_its_schema_fails_its_row() -> None:
    """Also where no grammar holds it: `not` is no keyword of xgrammar's."""
    answer = response('{"size": 1}', '{"size": 1, "none": true}')
    failure = checked(answer, spec(sampling={"structured_outputs": {"json": SIZE}}), {})
    assert isinstance(failure, RowFailure)
    assert failure.step == "parse"
    assert failure.reason.startswith(
        "the response does not fit the JSON schema ($: {'size': 1, 'none': True}"
    )
    row = {"structured_outputs": {"json": {"type": "object", "required": ["none"]}}}
    assert isinstance(checked(response('{"size": 1}'), spec(sampling=SCHEMA), row), RowFailure)


@pytest.mark.parametrize(
    ("text", "reason", "sampling", "named"),
    [
        ('{"a":' + "\n " * 20, "length", SCHEMA, True),
        ('{"a":' + "\n " * 20, "stop", SCHEMA, False),
        ('{"a": "b' + " " * 40, "length", SCHEMA, False),
        ('{"a":\n    ', "length", SCHEMA, False),
        ('{"a":' + "\n " * 20, "length", {}, False),
    ],
    ids=["without end", "not cut off", "inside of a text", "indentation", "no grammar"],
)
def test_white_space_without_end_is_named(
    text: str, reason: str, sampling: dict[str, Any], named: bool
) -> None:
    job = spec(sampling=sampling, response_format="json_object")
    failure = checked(response(text, reason=reason), job, {})
    assert isinstance(failure, RowFailure)
    assert ("'disable_any_whitespace': True" in failure.reason) is named


@pytest.mark.parametrize("reason", ["error", "abort"])
def test_a_request_that_the_engine_gave_up_is_no_response(reason: str) -> None:
    """vLLM ends a request so whose grammar it can't compile, with an empty text."""
    several = Response((Completion("a", "stop", 1), Completion("", reason, 0)), 1)
    failure = checked(several, spec(), {})
    assert isinstance(failure, RowFailure)
    assert failure.step == "engine"
    assert failure.reason == f"the engine ended the request with finish_reason {reason!r}"
    constrained = checked(several, spec(), CHOICE)
    assert isinstance(constrained, RowFailure)
    assert "engine_args={'structured_outputs_config': {'backend': 'guidance'}}" in constrained.reason


GOOD, OTHER = Completion("a", "stop", 1), Completion("b", "stop", 2)
CUT = Completion("c", "length", 3)


def in_step(*completions: Completion, **fields: Any) -> Any:
    step = {"name": "draft", "prompt": "{row.topic}", "sampling": {"n": 3}, "on_truncated": "error", **fields}
    (draft,) = spec_of(steps=[step]).questions()
    return task_of(draft).check(Response(completions, input_tokens=5), {})


def test_good_ones_come_first_and_others_say_why() -> None:
    made = in_step(CUT, GOOD, OTHER)
    assert [one.text for one in made.completions] == ["a", "b", "c"]
    assert [bool(one.extra.get("rejected")) for one in made.completions] == [False, False, True]


def test_a_row_without_a_good_one_fails_with_all_its_tokens() -> None:
    failed = in_step(CUT, replace(CUT, output_tokens=4))
    assert isinstance(failed, RowFailure)
    assert (failed.step, failed.input_tokens, failed.output_tokens) == ("length", 5, 7)
    assert len(in_step(CUT, CUT, on_rejected="continue").completions) == 2


def test_one_that_the_engine_gave_up_fails_its_row() -> None:
    """Else it would be stored, and never asked again."""
    for completions in (
        (replace(GOOD, finish_reason="abort"), OTHER),
        (OTHER, replace(GOOD, finish_reason="error")),
    ):
        failed = in_step(*completions, on_rejected="continue")
        assert isinstance(failed, RowFailure)
        assert (failed.step, failed.output_tokens) == ("engine", 3)
