# SPDX-License-Identifier: Apache-2.0
"""Calls of tools are those that vLLM's server would answer with."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from airflow_provider_raybatch.contract.arguments.tools import TOOL_CALLS_COLUMN
from airflow_provider_raybatch.job.row import Completion, Response, RowFailure
from airflow_provider_raybatch.job.tasks.registry import task_of
from tests.support.chat_models import MODELS
from tests.support.specs import spec
from tests.support.tools import ADD, tool

pytest.importorskip("vllm")
from airflow_provider_raybatch.job.engine import vllm_compat_parsers
from airflow_provider_raybatch.job.engine.response_parsers import ToolCaller

TOKENIZER = MODELS["qwen"].tokenizer()
TOKENIZER.add_tokens(["<tool_call>", "</tool_call>", "<|python_tag|>"])


def answered(text: str, parser: str = "hermes", **fields: Any) -> Response | RowFailure:
    """Return what the row of a response with this text gets."""
    job = spec(engine="vllm", model="m", tools=[tool("now", None), ADD], tool_call_parser=parser, **fields)
    response = Response((Completion(text, "stop", 5),), 10)
    return task_of(job).check(ToolCaller(job, TOKENIZER).added(response), {})


def calls(text: str, parser: str = "hermes") -> list[tuple[str, str]]:
    found = answered(text, parser)
    assert isinstance(found, Response)
    made = found.completions[0].extra[TOOL_CALLS_COLUMN]
    return [(call["name"], call["arguments"]) for call in made]


@pytest.mark.parametrize("arguments", ["{}", "null", '""', " {} "])
def test_call_without_arguments_has_an_empty_object(arguments: str) -> None:
    hermes = f'<tool_call>{{"name": "now", "arguments": {arguments}}}</tool_call>'
    assert calls(hermes) == [("now", "{}")]
    assert calls(f'{{"name": "now", "parameters": {arguments}}}', "llama3_json") == [("now", "{}")]
    needs = answered(hermes.replace("now", "add"))
    assert isinstance(needs, RowFailure)
    assert needs.reason.startswith("the arguments of 'add' do not fit its schema ($: 'a' is a required")


@pytest.mark.parametrize(
    "text",
    [
        'Write <tool_call>{"name": ...}</tool_call> to call one.',
        "<tool_call>",
        '<tool_call>{"name": "now"}</tool_call>',
        '<tool_call>{"name": "add", "arguments": {"a": 3',
        "<tool_call>[]</tool_call>",
        "<tool_call>3</tool_call> is no call",
        "Hello",
    ],
)
def test_text_in_which_the_parser_finds_no_call_is_the_answer(
    text: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The server answers with it, too. A tool choice still asks for a call."""
    found = answered(text)
    assert isinstance(found, Response)
    (completion,) = found.completions
    assert (completion.text, completion.finish_reason, dict(completion.extra)) == (text, "stop", {})
    must = answered(text, tool_choice="required")
    assert isinstance(must, RowFailure)
    assert must.reason == f"the response calls no tool, which tool_choice asks for: {text!r}"
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


def test_parser_that_raises_fails_the_row_without_its_class(monkeypatch: pytest.MonkeyPatch) -> None:
    class Raising(vllm_compat_parsers.tool_parser("hermes")):  # type: ignore[misc]
        def parse(self, *args: Any, **options: Any) -> Any:
            raise KeyError("arguments")

    monkeypatch.setattr(vllm_compat_parsers, "tool_parser", lambda name: Raising)
    found = answered("<tool_call>{}</tool_call>")
    assert isinstance(found, RowFailure)
    assert found.reason == (
        "the tool_call_parser 'hermes' can't read the response: '<tool_call>{}</tool_call>'"
    )
