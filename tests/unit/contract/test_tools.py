# SPDX-License-Identifier: Apache-2.0
"""Which tools a job may have, and what they go together with."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.specs import spec, spec_error
from tests.support.tools import ADD, tool


@pytest.mark.parametrize(
    ("tools", "sentence"),
    [
        ("add", "tools: it must be a list, but it is 'add'"),
        ([], "tools: "),
        (["add"], "tools: 0: 'add' is not a tool; write it as"),
        ([{"name": "add", "parameters": {}}], "tools: 0: {'name': 'add', 'parameters': {}} is not a tool"),
        ([{"type": "web_search", "function": {"name": "x"}}], "tools: 0: "),
        ([ADD, tool("no spaces", {})], "tools: 1: function: name: it must be 1 to 64 letters, digits"),
        ([ADD, ADD], "tools: 1: function: name: 'add' is also another tool's; rename one"),
        ([tool("x", "a text")], "tools: 0: function: parameters: it must be a JSON schema, an object"),
        ([tool("x", {"type": "array"})], "tools: 0: function: parameters: type: a tool takes an object"),
        ([tool("x", {"properties": ["a"]})], "tools: 0: function: parameters: properties: it must be a"),
        ([tool("x", {"properties": {"a": "int"}})], "properties: a: 'int' is not a JSON schema"),
        ([tool("x", {"properties": {"a": {}}, "required": "a"})], "required: it must be a list of names"),
        ([tool("x", {"properties": {"a": {}}, "required": ["b"]})], "required: 'b' is not among properties"),
    ],
)
def test_what_is_no_tool_is_refused(tools: Any, sentence: str) -> None:
    assert sentence in spec_error(tools=tools)


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"tool_choice": "required"}, "tool_choice: it has no effect without tools"),
        ({"tool_call_parser": "hermes"}, "tool_call_parser: it has no effect without tools"),
        (
            {"tools": [ADD], "tool_choice": "subtract"},
            "tool_choice: it must be 'auto', 'required', 'none' or",
        ),
        ({"tools": [ADD], "tool_choice": {"name": "add"}}, "tool_choice: it must be 'auto'"),
        (
            {"tools": [ADD], "engine": "vllm"},
            "tool_call_parser: each model writes calls in a form of its own",
        ),
        ({"tools": [ADD], "engine": "ray_data_llm"}, "tools: engine 'ray_data_llm' reads no calls of tools"),
        ({"tools": [ADD], "prompt_column": "raw"}, "tools: prompt_column sends raw prompts"),
        (
            {"tools": [ADD], "response_format": "json_object"},
            "tools: response_format constrains the response",
        ),
        (
            {"tools": [ADD], "sampling": {"structured_outputs": {"choice": ["a"]}}},
            "tools: structured_outputs constrains the response",
        ),
        ({"tools": [ADD], "model_task": "embed"}, "tools: it has no effect with model_task 'embed'"),
    ],
)
def test_what_does_not_go_with_tools_is_refused(fields: dict[str, Any], sentence: str) -> None:
    assert sentence in spec_error(**fields)


def test_tools_are_part_of_the_request() -> None:
    asked = [{}, {"tools": [ADD]}, {"tools": [ADD], "tool_choice": "add"}, {"tools": [tool("add", {})]}]
    assert len({spec(**fields).response_digest for fields in asked}) == len(asked)
    assert spec(tools=[ADD], tool_choice="auto").response_digest == spec(tools=[ADD]).response_digest
    assert spec(tools=[ADD], tool_choice="none", response_format="json_object").optional_columns == []
    assert spec(tools=[ADD]).optional_columns == ["tool_calls"]
