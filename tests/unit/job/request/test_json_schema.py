# SPDX-License-Identifier: Apache-2.0
"""A response is held to all of its schema, also to what the grammar passes over."""

from __future__ import annotations

import json
from typing import Any

import pytest

from airflow_provider_raybatch.job.request.json_schema import check_schema, misfit
from tests.support.approved import AssertSentences

PAIR = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}
NEEDS_ONE = [{"required": ["a"]}, {"required": ["b"]}]


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({**PAIR, "not": {"required": ["a"]}}, '{"a": 1}'),
        ({**PAIR, "if": {"required": ["a"]}, "then": {"required": ["b"]}}, '{"a": 1}'),
        ({**PAIR, "dependentRequired": {"a": ["b"]}}, '{"a": 1}'),
        ({**PAIR, "anyOf": NEEDS_ONE}, "{}"),
        ({**PAIR, "oneOf": NEEDS_ONE}, '{"a": 1, "b": 2}'),
        ({"allOf": [{**PAIR, "required": ["a"]}, {**PAIR, "required": ["b"]}]}, '{"a": 1}'),
        ({"$defs": {"n": {"type": "integer"}}, "$ref": "#/$defs/n", "minimum": 3}, "1"),
        ({"type": "object", "required": ["a"]}, "{}"),
        ({"type": ["array", "null"], "items": {"type": "integer"}, "uniqueItems": True}, "[1, 1]"),
        ({"minimum": 3}, "1"),
        ({"maxLength": 1}, '"ab"'),
        ({"type": "string", "enum": ["a", 1]}, "1"),
        ({"properties": {"a": {"type": "integer"}}}, "7"),
        (json.dumps(PAIR), "7"),
    ],
)
def test_what_xgrammar_passes_over_does_not_fit(schema: Any, text: str) -> None:
    """XGrammar 0.2 takes each of these texts, the last two apart, which other grammars take."""
    check_schema({"json": schema})
    assert misfit(json.loads(text), {"json": schema})


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        (PAIR, '{"a": 1}'),
        ({"type": "number", "multipleOf": 0.01}, "0.07"),
        ({"type": "string", "pattern": "^\\p{L}+$"}, '"\u00e9"'),
        ({"type": "string", "format": "date"}, '"in spring"'),
        ({"type": "array", "items": [{"type": "integer"}]}, "[1]"),
        ({"type": "number", "minimum": 3, "exclusiveMinimum": True}, "4"),
        ({"type": "object", "default": {"enum": [], "minimum": 5, "maximum": 1, "$ref": "#/x"}}, "{}"),
        ({"properties": {"minimum": True, "maximum": False}}, "{}"),
        ({"$id": "https://example.org/a", "$defs": {"n": {"type": "integer"}}, "$ref": "#/$defs/n"}, "1"),
    ],
    ids=[
        "plain",
        "decimals",
        "a pattern of another dialect",
        "formats",
        "draft 7",
        "draft 4",
        "in data",
        "as names",
        "by its id",
    ],
)
def test_a_good_response_fits(schema: Any, text: str) -> None:
    check_schema({"json": schema})
    assert misfit(json.loads(text), {"json": schema}) == ""


def test_the_place_is_named() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "array", "items": {"maximum": 9}}}}
    assert misfit({"a": [1, 20]}, {"json": schema}) == "$.a[1]: 20 is greater than the maximum of 9"


def test_any_object_is_an_object() -> None:
    assert misfit({}, {"json_object": True}) == ""
    assert misfit(7, {"json_object": True})


def test_what_no_engine_can_hold_to_is_refused(assert_sentences: AssertSentences) -> None:
    assert_sentences(lambda schema: check_schema({"json": schema}), ValueError)
