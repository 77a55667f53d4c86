# SPDX-License-Identifier: Apache-2.0
"""`steps` of the operator: rendered, serialised, given their types, and refused with the step's name."""

from __future__ import annotations

import copy
import json
import pickle
from typing import Any

import pytest
from airflow.sdk import DAG, literal
from pydantic import BaseModel

from airflow_provider_raybatch.contract.failures import SpecError
from airflow_provider_raybatch.operators.arguments import spec_of_fields
from airflow_provider_raybatch.steps import Step
from tests.support.airflow_tasks import Run
from tests.support.approved import AssertSentences
from tests.support.batches import batch, left, spec_of_job
from tests.support.fake_ray import FakeRay

SCHEMA = {
    "type": "object",
    "properties": {
        "score": {"type": "integer"},
        "good": {"$ref": "#/$defs/flag"},
        "reason": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "any": {},
        "mixed": {"type": ["string", "integer"]},
        "level": {"anyOf": [{"$ref": "#/$defs/level"}, {"type": "null"}]},
    },
    "$defs": {"flag": {"type": "boolean"}, "level": {"enum": [1, 2]}},
}


class Verdict(BaseModel):
    score: int


DRAFT = Step("draft", prompt="Write about {row.topic}", response_format=SCHEMA, on_rejected="continue")


def judge(**fields: Any) -> Step:
    return Step("judge", **{"prompt": "Judge {row.draft_response}", **fields})


def spec(*steps: Any, **fields: Any) -> Any:
    given = {"source": "/in", "model": "m", "destination": "/out", "steps": list(steps), **fields}
    return spec_of_fields(given)


def refused(*steps: Any, **fields: Any) -> str:
    with pytest.raises(SpecError) as error:
        batch(prompt=None, steps=list(steps), **fields)
    return str(error.value).removeprefix("Task 't': ")


class TestStep:
    def test_holds_what_is_given_and_nothing_else(self) -> None:
        assert Step("draft", prompt="p", sampling={}) == {"name": "draft", "prompt": "p", "sampling": {}}

    @pytest.mark.parametrize(
        "copied", [copy.copy, copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))]
    )
    def test_a_copy_is_the_same_step(self, copied: Any) -> None:
        assert copied(DRAFT) == DRAFT
        assert json.loads(json.dumps(DRAFT))["name"] == "draft"

    def test_a_dictionary_is_taken_as_well(self) -> None:
        assert spec(DRAFT, judge()) == spec(dict(DRAFT), dict(judge()))


class TestTemplates:
    def test_texts_inside_of_steps_are_rendered(self, ray: FakeRay, run: Run) -> None:
        draft = Step(
            "draft",
            messages=[{"role": "user", "content": "{{ params.style }}: {row.topic}"}],
            sampling={"max_tokens": "{{ params.most }}", "stop": "{{ params.nothing }}"},
        )
        operator = batch(prompt=None, steps=[draft, judge(prompt=literal("{{ x }} {row.draft_response}"))])
        operator.render_template_fields({"params": {"style": "Short", "most": 7, "nothing": ""}})
        operator.execute(run.context())
        first, second = spec_of_job(ray)["steps"]
        assert first["messages"] == [{"role": "user", "content": "Short: {row.topic}"}]
        assert first["sampling"]["max_tokens"] == 7
        assert second["prompt"] == "{{ x }} {row.draft_response}"

    def test_native_objects_leave_prompts_as_they_are(self) -> None:
        with DAG("d", schedule=None, render_template_as_native_obj=True) as dag:
            steps = [judge(prompt="{{ params.digits }}", sampling={"seed": "{{ params.digits }}"})]
            operator = batch(prompt=None, steps=steps)
        operator.render_template_fields({"params": {"digits": "20260101"}, "dag": dag})
        assert operator.steps == [{"name": "judge", "prompt": "20260101", "sampling": {"seed": "20260101"}}]

    @pytest.mark.parametrize("given", ["scan", ["scan"], '["scan"]', "['scan']"])
    def test_columns_of_images_may_be_text(self, given: Any) -> None:
        (read,) = spec(Step("read", prompt="Read it", images=given)).steps
        assert read.images == ["scan"]

    def test_a_whole_list_may_be_text(self) -> None:
        """As a template leaves what an XCom holds."""
        steps = [dict(DRAFT), dict(judge(when=[("draft_score", "in", [1, 2])]))]
        assert spec_of_fields({
            "source": "/in",
            "model": "m",
            "destination": "/out",
            "steps": str(steps),
        }) == spec(*steps)

    def test_a_step_that_a_template_decides_is_judged_later(self) -> None:
        operator = batch(prompt=None, steps=[judge(prompt="{{ params.x }}", when=[("a", "~", 1)])])
        assert operator.steps
        with pytest.raises(SpecError, match=r"^Task 't': steps: judge: when: a condition is \(column, oper"):
            batch(prompt=None, steps=[judge(when=[("a", "~", 1)])], limit="{{ params.x }}")

    @pytest.mark.parametrize(
        "name", ["sampling_column", "adapter_column", "system_prompt", "prompt", "format", "sampling"]
    )
    def test_other_arguments_may_be_unknown_meanwhile(self, name: str) -> None:
        assert batch(**{"prompt": None, "steps": [DRAFT, judge()], name: "{{ params.x }}"}).steps

    @pytest.mark.parametrize("sampling", [{"n": "{{ params.n }}"}, "{{ params.sampling }}", {"n": 4}])
    def test_a_template_may_decide_how_many_are_asked_about(self, sampling: Any) -> None:
        steps = [Step("draft", prompt="{row.topic}"), judge(each="draft", sampling={"n": 1})]
        assert batch(prompt=None, steps=steps, sampling=sampling).steps
        with pytest.raises(SpecError, match="gives one completion a row"):
            batch(prompt=None, steps=steps, sampling={"temperature": "{{ params.t }}"})


class TestConditions:
    @pytest.mark.parametrize(
        ("condition", "taken"),
        [
            (("draft_score", ">=", "3"), ("draft_score", ">=", 3)),
            (("Draft_Score", ">", "3.5"), ("Draft_Score", ">", 3.5)),
            (("draft_score", "in", "[1, '2']"), ("draft_score", "in", [1, 2])),
            (("draft_good", "==", "true"), ("draft_good", "==", True)),
            (("draft_level", "==", "2"), ("draft_level", "==", 2)),
            (("draft_output_tokens", "<", "9"), ("draft_output_tokens", "<", 9)),
            (("draft_reason", "==", "3"), ("draft_reason", "==", "3")),
            (("draft_any", "==", "3"), ("draft_any", "==", "3")),
            (("draft_mixed", "==", "3"), ("draft_mixed", "==", "3")),
            (("topic", "==", "3"), ("topic", "==", "3")),
            (("draft_rejected", "is null"), ("draft_rejected", "is null")),
        ],
        ids=str,
    )
    def test_text_becomes_what_the_column_holds(self, condition: Any, taken: Any) -> None:
        for when in (condition, [condition], str([condition])):
            assert spec(DRAFT, judge(when=when)).steps[1].when == [taken]

    def test_a_comparison_that_never_holds_is_refused(self, assert_sentences: AssertSentences) -> None:
        assert_sentences(lambda condition: refused(DRAFT, judge(when=condition)))


class TestRefusals:
    def test_a_mistake_names_its_step(self, assert_sentences: AssertSentences) -> None:
        assert_sentences(lambda step: refused(DRAFT, step))

    @pytest.mark.parametrize("steps", [[], "draft", {"name": "draft"}], ids=str)
    def test_only_a_list_of_steps_is_taken(self, steps: Any) -> None:
        with pytest.raises(SpecError, match=r"^Task 't': steps: it must be a list of at least one step, but"):
            batch(prompt=None, steps=steps)

    def test_sampling_of_the_task_is_named_without_a_step(self) -> None:
        assert refused(DRAFT, sampling={"temperatur": 1}).startswith("sampling: temperatur: ")

    def test_a_prompt_beside_steps_is_refused(self) -> None:
        assert refused(DRAFT, system_prompt="x").startswith("system_prompt: it has no effect with steps")

    def test_misplaced_arguments_are_understood(self, assert_sentences: AssertSentences) -> None:
        assert_sentences(lambda name: refused(DRAFT, **{name: "x"}))


def test_an_unknown_parameter_of_a_step_is_logged(
    ray: FakeRay, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    operator = batch(prompt=None, steps=[DRAFT, judge(sampling={"vllm_of_tomorrow": 1})])
    left(operator).execute(run.context())
    assert "has no 'vllm_of_tomorrow'; the cluster's version decides." in capsys.readouterr().out
