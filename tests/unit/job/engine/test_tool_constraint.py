# SPDX-License-Identifier: Apache-2.0
"""A call that must be made is not lost in white space."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_raybatch.job.engine.vllm_compat_parsers import constraint_of

ARGUMENTS = {
    "type": "object",
    "properties": {"max_whitespace_cnt": {"type": "integer"}, "b": {"type": "integer"}},
}
CALL = '<call>{{"max_whitespace_cnt":{}1,{}"b": 2}}</call>'


def tag(**content: Any) -> dict[str, Any]:
    """As vLLM's parsers write one for a call that `tool_choice` asks for."""
    format_ = {
        "type": "tag",
        "begin": "<call>",
        "content": {"type": "json_schema", "json_schema": ARGUMENTS, **content},
        "end": "</call>",
    }
    return {
        "type": "structural_tag",
        "format": {"type": "tags_with_separator", "tags": [format_], "separator": "\n"},
    }


def constrained(document: dict[str, Any]) -> Any:
    asked = SimpleNamespace(structural_tag=json.dumps(document), json=None)
    found = constraint_of(SimpleNamespace(skip_special_tokens=True, structured_outputs=asked))
    return json.loads(found["structured_outputs"]["structural_tag"])


def test_json_in_a_call_has_one_blank_in_a_row_at_most() -> None:
    assert constrained(tag(max_whitespace_cnt=None)) == tag(max_whitespace_cnt=1)
    for given in ({"max_whitespace_cnt": 0}, {"max_whitespace_cnt": 7}, {}):
        assert constrained(tag(**given)) == tag(**given)


def test_the_grammar_takes_json_but_no_endless_blanks() -> None:
    xgrammar = pytest.importorskip("xgrammar")
    from xgrammar.testing import _is_grammar_accept_string as accepts

    if "max_whitespace_cnt" not in xgrammar.structural_tag.JSONSchemaFormat.model_fields:
        pytest.skip("this xgrammar has no limit of white space")
    made = constrained(tag(max_whitespace_cnt=None))
    grammar = xgrammar.Grammar.from_structural_tag(json.dumps(made))
    assert accepts(grammar, CALL.format(" ", " "))
    assert accepts(grammar, CALL.format("", ""))
    assert not accepts(grammar, CALL.format(" ", "   "))
