# SPDX-License-Identifier: Apache-2.0
"""Which tools a job may have, and what they go together with."""

from __future__ import annotations

from tests.support.approved import AssertSentences
from tests.support.specs import spec, spec_error
from tests.support.tools import ADD, tool


def test_what_is_no_tool_is_refused(assert_sentences: AssertSentences) -> None:
    assert_sentences(lambda tools: spec_error(tools=tools))


def test_what_does_not_go_with_tools_is_refused(assert_sentences: AssertSentences) -> None:
    assert_sentences(spec_error)


def test_tools_are_part_of_the_request() -> None:
    asked = [{}, {"tools": [ADD]}, {"tools": [ADD], "tool_choice": "add"}, {"tools": [tool("add", {})]}]
    assert len({spec(**fields).response_digest for fields in asked}) == len(asked)
    assert spec(tools=[ADD], tool_choice="auto").response_digest == spec(tools=[ADD]).response_digest
    assert spec(tools=[ADD], tool_choice="none", response_format="json_object").optional_columns == []
    assert spec(tools=[ADD]).optional_columns == ["tool_calls"]
