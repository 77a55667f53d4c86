# SPDX-License-Identifier: Apache-2.0
"""Steps: conditions on rows, arguments of each, and steps about completions."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any, ClassVar

import pytest

from airflow_provider_raybatch.contract.arguments.steps import (
    OPERATORS,
    StepArguments,
    check_condition,
    holds,
)
from airflow_provider_raybatch.contract.base import parse
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from tests.support.approved import AssertSentences
from tests.support.specs import spec, spec_error

VALUES = [None, 4, 4.5, Decimal("4.5"), True, "4", "five", [4], math.nan]


@pytest.mark.parametrize(
    ("operator", "other", "fulfilled"),
    [
        ("is null", None, [None]),
        ("is not null", None, [4, 4.5, Decimal("4.5"), True, "4", "five", [4], math.nan]),
        ("==", 4, [4]),
        ("==", 4.5, [4.5, Decimal("4.5")]),
        ("==", "4", ["4"]),
        ("==", True, [True]),
        ("!=", 4, [4.5, Decimal("4.5"), math.nan]),
        ("!=", "4", ["five"]),
        ("!=", False, [True]),
        ("<", 4.5, [4]),
        ("<=", 4.5, [4, 4.5, Decimal("4.5")]),
        (">", 4, [4.5, Decimal("4.5")]),
        (">=", 4, [4, 4.5, Decimal("4.5")]),
        ("<", "5", ["4"]),
        (">=", False, [True]),
        ("in", [4, "five"], [4, "five"]),
        ("in", [], []),
        ("not in", [4], [4.5, Decimal("4.5"), math.nan]),
        ("not in", [4, "4"], [4.5, Decimal("4.5"), "five", math.nan]),
        ("not in", [True], []),
        ("not in", [], [4, 4.5, Decimal("4.5"), True, "4", "five", [4], math.nan]),
    ],
)
def test_nulls_and_other_kinds_fulfil_nothing(operator: str, other: Any, fulfilled: list[Any]) -> None:
    found = [value for value in VALUES if holds(value, operator, other)]
    assert [repr(value) for value in found] == [repr(value) for value in fulfilled]


@pytest.mark.parametrize("digits", ["0.1", "19.99", "-2.675", "1E+22"])
def test_a_decimal_equals_the_number_that_is_written_alike(digits: str) -> None:
    value, number = Decimal(digits), float(digits)
    fulfilled = [
        operator for operator in ("==", "!=", "<", "<=", ">", ">=") if holds(value, operator, number)
    ]
    assert fulfilled == ["==", "<=", ">="]
    assert holds(value, "in", [number, 7.5])
    assert not holds(value, "not in", [number, 7.5])


@pytest.mark.parametrize("operator", OPERATORS)
def test_each_operator_can_be_written_and_judges(operator: str) -> None:
    other: list[Any] = [] if "null" in operator else [["a"]] if "in" in operator.split() else ["a"]
    check_condition(("column", operator, *other))
    assert {holds(value, operator, *other) for value in (None, "a", "b", " ")} == {True, False}


def test_other_conditions_are_refused(assert_sentences: AssertSentences) -> None:
    assert_sentences(check_condition, ValueError)


SCHEMA = {"type": "object", "properties": {"title": {"type": "string"}}, "required": ["title"]}
DRAFT = {
    "name": "draft",
    "prompt": "Write about {row.topic}",
    "response_format": SCHEMA,
    "on_rejected": "continue",
    "sampling": {"max_tokens": 50},
}
REPAIR = {
    "name": "repair",
    "prompt": "Repair {row.draft_response}: {row.draft_rejected}",
    "when": [("draft_rejected", "is not null")],
}
JUDGE = {
    "name": "judge",
    "messages": [{"role": "user", "content": "Judge {row.draft_title}"}],
    "when": ("draft_rejected", "is null"),
}


def in_steps(*steps: dict[str, Any], **fields: Any) -> BatchInferenceSpec:
    return spec(steps=list(steps or (DRAFT, REPAIR, JUDGE)), **fields)


def refused(*steps: dict[str, Any], **fields: Any) -> str:
    return spec_error(**fields, steps=list(steps))


class TestSplit:
    def test_each_step_asks_as_if_it_were_the_only_one(self) -> None:
        whole = in_steps(sampling={"temperature": 0.5, "max_tokens": 9}, postprocess="labels:parse")
        draft, repair, judge = whole.questions()
        assert (draft.prompt, draft.output_prefix, draft.response_schema) == (
            "Write about {row.topic}",
            "draft_",
            SCHEMA,
        )
        assert draft.sampling == {
            "temperature": 0.5,
            "max_tokens": 50,
            "structured_outputs": {"json": SCHEMA},
        }
        assert (repair.sampling, repair.response_schema) == ({"temperature": 0.5, "max_tokens": 9}, None)
        assert judge.messages is not None
        assert judge.messages[0].content == "Judge {row.draft_title}"
        assert [one.postprocess for one in (draft, repair, judge)] == [None, None, "labels:parse"]
        assert [one.steps for one in (draft, repair, judge)] == [None, None, None]

    def test_steps_know_their_place(self) -> None:
        asked = [one.asked_step for one in in_steps().questions()]
        assert [(one.step.name, one.number, one.is_last) for one in asked if one is not None] == [
            ("draft", 0, False),
            ("repair", 1, False),
            ("judge", 2, True),
        ]

    def test_only_a_step_that_goes_on_has_the_column_of_reasons(self) -> None:
        draft, repair, _ = in_steps().questions()
        assert {"draft_response", "draft_rejected", "draft_title"} <= draft.made_columns
        assert "repair_response" in repair.made_columns
        assert "repair_rejected" not in repair.made_columns

    def test_a_spec_survives_its_journey_to_the_job(self) -> None:
        whole = in_steps()
        assert parse(BatchInferenceSpec, whole.model_dump_json()) == whole
        for step in whole.questions():
            assert parse(BatchInferenceSpec, step.model_dump_json()) == step


class TestAsked:
    def test_all_conditions_must_hold(self) -> None:
        conditions = [("draft_rejected", "is not null"), ("score", ">=", 3)]
        repair = parse(StepArguments, {**REPAIR, "when": conditions})
        assert repair.is_asked({"draft_rejected": "cut off", "score": 3})
        assert not repair.is_asked({"draft_rejected": "cut off", "score": 2})
        assert not repair.is_asked({"draft_rejected": None, "score": 3})
        assert not repair.is_asked({"score": 3})

    def test_one_condition_needs_no_list(self) -> None:
        assert parse(StepArguments, JUDGE).when == [("draft_rejected", "is null")]

    def test_rows_and_steps_mean_one_version_of_an_adapter(self) -> None:
        chosen = {"adapters": {"acme/critic": "acme/critic@a"}, "adapter_column": "who"}
        said = refused(DRAFT, {**JUDGE, "adapter": "acme/critic@b"}, **chosen)
        assert "'acme/critic@b' and 'acme/critic@a' are two versions of one adapter" in said
        assert in_steps(DRAFT, {**JUDGE, "adapter": "acme/critic@a"}, **chosen).adapter_locations == {
            "acme/critic": "acme/critic@a"
        }


class TestDigests:
    def digests(self, *steps: dict[str, Any], **fields: Any) -> list[str]:
        return [one.response_digest for one in in_steps(*steps, **fields).questions()]

    def test_another_judge_changes_only_its_own_digest(self) -> None:
        other = {**JUDGE, "messages": [{"role": "user", "content": "Judge harshly {row.draft_title}"}]}
        before, after = self.digests(DRAFT, REPAIR, JUDGE), self.digests(DRAFT, REPAIR, other)
        assert [one == two for one, two in zip(before, after, strict=True)] == [True, True, False]

    def test_sampling_of_the_task_changes_all_digests(self) -> None:
        before, after = self.digests(), self.digests(sampling={"temperature": 0})
        assert not set(before) & set(after)
        assert len(set(before)) == 3

    def test_any_change_of_a_step_makes_another_job(self) -> None:
        before = in_steps().fingerprint
        assert in_steps().fingerprint == before
        changes: list[dict[str, Any]] = [{"when": []}, {"on_rejected": "continue"}, {"name": "mend"}]
        for changed in changes:
            assert in_steps(DRAFT, {**REPAIR, **changed}, JUDGE).fingerprint != before

    def test_a_step_asks_what_the_same_task_alone_asks(self) -> None:
        """So the response store of earlier tasks serves steps, too."""
        own = {"prompt": DRAFT["prompt"], "response_format": SCHEMA, "sampling": {"max_tokens": 50}}
        alone = spec(**own)
        assert alone.response_digest == self.digests()[0]


class TestImages:
    READ: ClassVar[dict[str, Any]] = {"name": "read", "prompt": "Read it.", "images": "scan"}
    JUDGE: ClassVar[dict[str, Any]] = {"name": "judge", "prompt": "Judge {row.read_response}"}

    def test_each_step_shows_its_own(self) -> None:
        again = {**self.JUDGE, "images": ["other", "scan"]}
        whole = in_steps(self.READ, again, {**self.JUDGE, "name": "last"}, keep_images=True)
        assert [one.images for one in whole.questions()] == [["scan"], ["other", "scan"], []]
        for one in (whole, *whole.questions()):
            assert (set(one.image_columns), one.may_have_images) == ({"scan", "other"}, True)
        assert not in_steps().may_have_images

    def test_one_more_image_is_paid_for_in_its_step_alone(self) -> None:
        before = in_steps(self.READ, self.JUDGE).questions()
        after = in_steps({**self.READ, "images": ["scan", "other"]}, self.JUDGE).questions()
        same = [one.response_digest == two.response_digest for one, two in zip(before, after, strict=True)]
        assert same == [False, True]
        alone = spec(prompt="Read it.", images="scan")
        assert before[0].response_digest == alone.response_digest

    def test_what_a_step_can_not_show(self, assert_sentences: AssertSentences) -> None:
        def said(**change: Any) -> str:
            many = {**self.READ, "sampling": {"n": 2, "temperature": 1}}
            return refused(many, {**self.JUDGE, **change})

        assert_sentences(said)

    def test_images_that_no_step_shows_are_not_kept(self) -> None:
        assert refused(self.JUDGE, keep_images=True).startswith(
            "keep_images: it has no effect without images"
        )


class TestRefusals:
    def test_a_step_that_is_wrong_by_itself(self, assert_sentences: AssertSentences) -> None:
        assert_sentences(lambda **change: refused({**DRAFT, **change}))

    def test_arguments_that_steps_have_no_use_for(self, assert_sentences: AssertSentences) -> None:
        assert_sentences(lambda **fields: refused(DRAFT, **fields))

    def test_steps_that_do_not_fit_together(self, assert_sentences: AssertSentences) -> None:
        assert_sentences(lambda steps: refused(*steps))

    def test_a_step_without_columns_may_follow_another(self) -> None:
        """Nothing is said of columns that only the source may have."""
        assert in_steps({"name": "a", "prompt": "{row.b_response} {row.draft_text}"}, DRAFT).steps


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
DRAFTS: dict[str, Any] = {"name": "draft", "prompt": "{row.topic}", "sampling": {"n": 3}}
REPAIR_EACH: dict[str, Any] = {"name": "repair", "prompt": "{row.draft_response}", "each": "draft"}
RANKING: dict[str, Any] = {
    "name": "judge",
    "prompt": "{row.draft_response}",
    "each": "draft",
    "best": "score",
    "response_format": SCORE,
}


def test_completions_go_back_to_one_sample() -> None:
    other = {**DRAFTS, "name": "other"}
    last = {**RANKING, "name": "last", "each": "repair"}
    safety = {**RANKING, "name": "safety"}
    steps = spec(steps=[DRAFTS, other, safety, REPAIR_EACH, last, {**last, "name": "end", "each": "last"}])
    families = [one.asked_step.family for one in steps.questions() if one.asked_step]
    own = ["draft", "safety", "repair", "last"]
    assert families == [[], [], own[:1], own[:2], own[:3], own]
    assert all(one.asks_several for one in steps.questions())


@pytest.mark.parametrize("best", ["score", "fits", "maybe", "either", "level"])
def test_what_has_an_order_ranks(best: str) -> None:
    judge = spec(steps=[DRAFTS, {**RANKING, "best": best}]).questions()[-1]
    assert {"judge_candidate", "judge_rejected", "judge_completions"} <= set(judge.step_columns)


def test_steps_that_rank_nothing_are_refused(assert_sentences: AssertSentences) -> None:
    assert_sentences(lambda steps: spec_error(steps=steps))


def test_adapters_of_all_steps_are_loaded() -> None:
    own = {**RANKING, "adapter": "acme/critic@abc"}
    whole = spec(steps=[DRAFTS, REPAIR_EACH, own], adapter="/adapters/writer")
    assert whole.adapter_locations == {
        "/adapters/writer": "/adapters/writer",
        "acme/critic": "acme/critic@abc",
    }
    assert [list(one.adapter_locations) for one in whole.questions()] == [
        ["/adapters/writer"],
        ["/adapters/writer"],
        ["acme/critic"],
    ]


def test_another_adapter_of_the_judge_leaves_the_draft() -> None:
    before = spec(steps=[DRAFTS, {**RANKING, "adapter": "/a"}]).questions()
    after = spec(steps=[DRAFTS, {**RANKING, "adapter": "/b"}]).questions()
    same = [one.response_digest == two.response_digest for one, two in zip(before, after, strict=True)]
    assert same == [True, False]
