# SPDX-License-Identifier: Apache-2.0
"""Which steps may ask about each completion of an earlier one, and rank them."""

from __future__ import annotations

from typing import Any

import pytest

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


@pytest.mark.parametrize(
    ("steps", "sentence"),
    [
        (
            [DRAFT, {**JUDGE, "each": "drafts"}],
            "steps: judge: each: 'drafts' is not the name of an earlier step; name one of 'draft'",
        ),
        (
            [{**JUDGE, "each": "judge"}],
            "steps: judge: each: 'judge' is not the name of an earlier step; there is none; remove each",
        ),
        (
            [{**DRAFT, "sampling": {}}, JUDGE],
            "steps: judge: each: step 'draft' gives one completion a row; set its sampling={'n': ...} to 2 "
            "or more, or remove each",
        ),
        (
            [DRAFT, {**JUDGE, "sampling": {"n": 2}}],
            "steps: judge: sampling: n is 2, and a step with each asks once about each completion; set n to "
            "1 there",
        ),
        (
            [DRAFT, {**JUDGE, "response_format": "text"}],
            "steps: judge: best: 'score' is read in the response, which is text; give a JSON schema with "
            "this property in response_format",
        ),
        (
            [DRAFT, {**JUDGE, "best": "points"}],
            "steps: judge: best: 'points' is not a property of response_format; name one of ['either', "
            "'fits', 'level', 'maybe', 'score', 'why', 'yes']",
        ),
        (
            [DRAFT, {**JUDGE, "best": "why"}],
            "steps: judge: best: 'why' is {'type': 'string'}, whose values have no order; give it the type "
            "'integer', 'number' or 'boolean'",
        ),
        (
            [DRAFT, {**JUDGE, "best": "yes"}],
            "steps: judge: best: 'yes' is {'anyOf': [{'type': 'boolean', 'const': True}",
        ),
        (
            [DRAFT, {**JUDGE, "each": None}],
            "best: 'score' ranks the completions that a step asks about; name their step in each",
        ),
        (
            [{**DRAFT, "when": ["topic", "is not null"]}, JUDGE],
            "steps: judge: each: step 'draft' has a condition, and this one has none, so it would ask about "
            "rows without completions; give it when=('draft_response', 'is not null')",
        ),
        (
            [DRAFT, REPAIR, {**JUDGE, "name": "safety", "each": "repair"}, JUDGE],
            "steps: judge: each: step 'safety' asks about 'repair' before, and not every completion of "
            "'draft' has an answer there; ask about 'repair' or 'safety', or put this step before 'safety'",
        ),
        (
            [DRAFT, REPAIR, JUDGE, {**JUDGE, "name": "late", "each": "repair"}],
            "steps: late: each: step 'judge' asks about 'draft' before",
        ),
        (
            [DRAFT, {**JUDGE, "sampling": {"prompt_logprobs": 0}}],
            "steps: judge: sampling: prompt_logprobs: a row has one column for them",
        ),
        (
            [{**DRAFT, "adapter": "acme/critic@a"}, {**JUDGE, "adapter": "acme/critic@b"}],
            "steps: judge: adapter: 'acme/critic@b' and 'acme/critic@a' are two versions of one adapter",
        ),
        ([DRAFT, {**JUDGE, "adapter": "gs://b/lora"}], "adapter: 'gs://' is not read for adapters"),
        ([{**DRAFT, "prompt": "{row.judge_score}"}, JUDGE], "steps: draft: it reads 'judge_score'"),
    ],
)
def test_steps_that_rank_nothing_are_refused(steps: list[dict[str, Any]], sentence: str) -> None:
    assert sentence in spec_error(steps=steps)


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
