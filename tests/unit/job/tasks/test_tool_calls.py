# SPDX-License-Identifier: Apache-2.0
"""Calls of tools are kept as they were made, and fit the tools' schemas."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from airflow_provider_raybatch.contract.arguments.tools import BROKEN_CALL, TOOL_CALLS_COLUMN
from airflow_provider_raybatch.job.row import Completion, Response, RowFailure
from airflow_provider_raybatch.job.tasks.registry import task_of
from tests.support.specs import spec
from tests.support.tools import ADD, WEATHER

CALLS = pa.list_(pa.struct([("name", pa.string()), ("arguments", pa.string())]))


def response(*calls: tuple[str, str], text: str = "", reason: str = "tool_calls", **extra: Any) -> Response:
    made = [{"name": name, "arguments": arguments} for name, arguments in calls]
    found = {TOOL_CALLS_COLUMN: made, **extra} if made else extra
    return Response((Completion(text, reason, 5, extra=found),), 10)


def job(**fields: Any) -> Any:
    fields = {"engine": "vllm", "tool_call_parser": "hermes", "tools": [ADD, WEATHER], **fields}
    return task_of(spec(**fields))


def failure(asked: Any, made: Response) -> str:
    found = asked.check(made, {})
    assert isinstance(found, RowFailure)
    return f"{found.step}: {found.reason}"


GOOD = ("add", '{"a": 3, "b": 4}')


@pytest.mark.parametrize(
    ("made", "sentence"),
    [
        (response(("add", '{"a": 3}')), "the arguments of 'add' do not fit its schema ($: 'b' is a required"),
        (
            response(("add", '{"a": "3", "b": 4}')),
            "do not fit its schema ($.a: '3' is not of type 'integer')",
        ),
        (response(GOOD, ("add", '{"a": 3, "b": -1}')), "($.b: -1 is less than the minimum of 0)"),
        (response(("add", "993332554")), "the arguments of 'add' do not fit its schema ("),
        (response(("weather", '["Oslo"]')), "the arguments of 'weather' do not fit its schema ("),
        (response(("add", '{"a": 3, ')), "the arguments of 'add' are not JSON ("),
        (response(("rm", "{}")), "the response calls the tool 'rm', which is not among tools"),
        (
            response(text="<tool_call>{", reason="stop", **{BROKEN_CALL: True}),
            "the tool_call_parser 'hermes' can't read the response: '<tool_call>{'",
        ),
    ],
)
def test_broken_call_is_a_dead_letter(made: Response, sentence: str) -> None:
    assert failure(job(), made).startswith("parse: ")
    assert sentence in failure(job(), made)


def test_response_may_call_tools_or_none() -> None:
    for made in (response(GOOD), response(GOOD, ("weather", "{}")), response(text="Hello", reason="stop")):
        assert job().check(made, {}) is made


@pytest.mark.parametrize("choice", ["required", "add"])
def test_response_without_the_call_asked_for_fails(choice: str) -> None:
    """Also one that was cut off, whose call is lost."""
    text = response(text="Hello", reason="stop")
    assert "the response calls no tool, which tool_choice asks for" in failure(job(tool_choice=choice), text)
    cut = response(text="<tool_call>{", reason="length")
    assert "which tool_choice asks for, cut off by max_tokens" in failure(job(tool_choice=choice), cut)
    assert job().check(cut, {}) is cut
    strict = job(tool_choice=choice, on_truncated="error")
    assert failure(strict, cut).startswith("length: the response was cut off")


def test_calls_are_a_list_of_structs() -> None:
    asked = job(sampling={"n": 2})
    kind = asked.output_type
    assert kind.field(TOOL_CALLS_COLUMN).type == CALLS
    assert kind.field("completions").type.value_type.field(TOOL_CALLS_COLUMN).type == CALLS
    two = Response((*response(GOOD).completions, *response(text="No", reason="stop").completions), 10)
    rows = asked.outputs([two, None, response(text="Hi", reason="stop")]).to_pylist()
    call = {"name": "add", "arguments": '{"a": 3, "b": 4}'}
    assert [row and row[TOOL_CALLS_COLUMN] for row in rows] == [[call], None, None]
    assert [one[TOOL_CALLS_COLUMN] for one in rows[0]["completions"]] == [[call], None]
    assert asked.totals(asked.outputs([two])).finish_reasons == {"tool_calls": 1, "stop": 1}
    assert task_of(spec()).output_type.get_field_index(TOOL_CALLS_COLUMN) == -1
