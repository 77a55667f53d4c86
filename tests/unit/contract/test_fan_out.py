# SPDX-License-Identifier: Apache-2.0
"""Which steps may ask about each completion of an earlier one, and rank them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.approved import AssertSentences
from tests.support.specs import spec, spec_error

SCORE = {
    "type": "object",
    "properties": {
        "score": {"$ref": "#/$defs/score"},
        "why": {"type": "string"},
        "fits": {"type": "boolean"},
        "maybe": {"type": ["number", "null"]},
        "either": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        "level": {"anyOf": [{"$ref": "#/$defs/level"}, {"type": "null"}]},
        "yes": {"anyOf": [{"type": "boolean", "const": True}, {"type": "boolean", "const": False}]},
    },
    "$defs": {"score": {"type": "integer"}, "level": {"enum": [1, 2.5]}},
}
DRAFT: dict[str, Any] = {"name": "draft", "prompt": "{row.topic}", "sampling": {"n": 3}}
REPAIR: dict[str, Any] = {"name": "repair", "prompt": "{row.draft_response}", "each": "draft"}
JUDGE: dict[str, Any] = {
    "name": "judge",
    "prompt": "{row.draft_response}",
    "each": "draft",
    "best": "score",
    "response_format": SCORE,
}


def test_completions_go_back_to_one_sample() -> None:
    other = {**DRAFT, "name": "other"}
    last = {**JUDGE, "name": "last", "each": "repair"}
    safety = {**JUDGE, "name": "safety"}
    steps = spec(steps=[DRAFT, other, safety, REPAIR, last, {**last, "name": "end", "each": "last"}])
    families = [one.asked_step.family for one in steps.step_specs() if one.asked_step]
    own = ["draft", "safety", "repair", "last"]
    assert families == [[], [], own[:1], own[:2], own[:3], own]
    assert all(one.asks_several for one in steps.step_specs())


@pytest.mark.parametrize("best", ["score", "fits", "maybe", "either", "level"])
def test_what_has_an_order_ranks(best: str) -> None:
    judge = spec(steps=[DRAFT, {**JUDGE, "best": best}]).step_specs()[-1]
    assert {"judge_candidate", "judge_rejected", "judge_completions"} <= set(judge.step_columns)


def test_steps_that_rank_nothing_are_refused(assert_sentences: AssertSentences) -> None:
    assert_sentences(lambda steps: spec_error(steps=steps))


def test_adapters_of_all_steps_are_loaded() -> None:
    own = {**JUDGE, "adapter": "acme/critic@abc"}
    whole = spec(steps=[DRAFT, REPAIR, own], adapter="/adapters/writer")
    assert whole.adapter_locations == {
        "/adapters/writer": "/adapters/writer",
        "acme/critic": "acme/critic@abc",
    }
    assert [list(one.adapter_locations) for one in whole.step_specs()] == [
        ["/adapters/writer"],
        ["/adapters/writer"],
        ["acme/critic"],
    ]


def test_another_adapter_of_the_judge_leaves_the_draft() -> None:
    before = spec(steps=[DRAFT, {**JUDGE, "adapter": "/a"}]).step_specs()
    after = spec(steps=[DRAFT, {**JUDGE, "adapter": "/b"}]).step_specs()
    same = [one.response_digest == two.response_digest for one, two in zip(before, after, strict=True)]
    assert same == [True, False]
