# SPDX-License-Identifier: Apache-2.0
"""`steps` of the operator: rendered, serialised, given their types, and refused with the step's name."""

from __future__ import annotations

import copy
import json
import math
import pickle
from typing import Any

import pytest
from airflow.sdk import DAG, literal
from airflow.serialization.serialized_objects import DagSerialization
from pydantic import BaseModel

from airflow_provider_raybatch.contract.failures import SpecError
from airflow_provider_raybatch.operators.arguments import build_spec
from airflow_provider_raybatch.operators.ray_batch import RayBatchInferenceOperator
from airflow_provider_raybatch.steps import Step
from tests.support.airflow_tasks import Run
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
    return build_spec(given)


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
        assert build_spec({
            "source": "/in",
            "model": "m",
            "destination": "/out",
            "steps": str(steps),
        }) == spec(*steps)

    def test_a_step_that_a_template_decides_is_judged_later(self) -> None:
        operator = batch(prompt=None, steps=[judge(prompt="{{ params.x }}", when=[("a", "~", 1)])])
        assert operator.steps
        with pytest.raises(SpecError, match=r"^Task 't': steps: judge: when: '~' is not an operator"):
            batch(prompt=None, steps=[judge(when=[("a", "~", 1)])], limit="{{ params.x }}")

    @pytest.mark.parametrize("name", ["sampling_column", "system_prompt", "prompt", "format", "sampling"])
    def test_other_arguments_may_be_unknown_meanwhile(self, name: str) -> None:
        assert batch(**{"prompt": None, "steps": [DRAFT, judge()], name: "{{ params.x }}"}).steps

    @pytest.mark.parametrize("sampling", [{"n": "{{ params.n }}"}, "{{ params.sampling }}", {"n": 4}])
    def test_a_template_may_decide_how_many_are_asked_about(self, sampling: Any) -> None:
        steps = [Step("draft", prompt="{row.topic}"), judge(each="draft", sampling={"n": 1})]
        assert batch(prompt=None, steps=steps, sampling=sampling).steps
        with pytest.raises(SpecError, match="gives one completion a row"):
            batch(prompt=None, steps=steps, sampling={"temperature": "{{ params.t }}"})


class TestSerialisation:
    def test_a_dag_with_steps_is_the_same_on_each_parse(self) -> None:
        def serialised() -> Any:
            with DAG("d", schedule=None) as dag:
                batch(prompt=None, steps=[DRAFT, judge(when=(c for c in [("draft_score", ">=", 3)]))])
            return DagSerialization.to_dict(dag)["dag"]["tasks"]

        one = serialised()
        assert one == serialised()
        found = json.loads(json.dumps(one))[0]["__var"]["steps"]
        assert [step["name"] for step in found] == ["draft", "judge"]
        assert found[1]["when"] == [["draft_score", ">=", 3]]

    def test_steps_may_be_partial_or_mapped(self) -> None:
        with DAG("d", schedule=None) as dag:
            common = {"source": "/in", "model": "m"}
            RayBatchInferenceOperator.partial(task_id="a", steps=[DRAFT], **common).expand(
                destination=["/a", "/b"]
            )
            RayBatchInferenceOperator.partial(task_id="b", destination="/c", **common).expand(
                steps=[[DRAFT], [DRAFT, judge()]]
            )
        tasks = json.loads(json.dumps(DagSerialization.to_dict(dag)))["dag"]["tasks"]
        assert len(tasks) == 2


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

    @pytest.mark.parametrize(
        ("condition", "sentence"),
        [
            (
                ("draft_score", ">=", "four"),
                "'draft_score' is a number, so no row fulfils a comparison with 'four'",
            ),
            (
                ("draft_score", "==", True),
                "'draft_score' is a number, so no row fulfils a comparison with True",
            ),
            (("draft_good", "==", 1), "'draft_good' is true or false, so no row fulfils a comparison with 1"),
            (
                ("draft_reason", "in", ["a", 3]),
                "'draft_reason' is text, so no row fulfils a comparison with 3",
            ),
            (("draft_rejected", "!=", 0), "'draft_rejected' is text, so no row fulfils a comparison with 0"),
            (
                ("draft_any", ">", 3),
                "'draft_any' is a list, an object or JSON text, so no row fulfils a comparison with 3",
            ),
            (
                ("draft_mixed", "in", ["a", True]),
                "'draft_mixed' is a list, an object or JSON text, so no row fulfils a comparison with True",
            ),
            (
                ("draft_level", "==", "low"),
                "'draft_level' is a number, so no row fulfils a comparison with 'low'",
            ),
        ],
        ids=str,
    )
    def test_a_comparison_that_never_holds_is_refused(self, condition: Any, sentence: str) -> None:
        assert refused(DRAFT, judge(when=condition)) == f"steps: judge: when: {sentence}; correct the value."


class TestRefusals:
    @pytest.mark.parametrize(
        ("step", "sentence"),
        [
            (
                {**judge(), "temperature": 0},
                "steps: judge: temperature: it is not an argument; put it into "
                "sampling={'temperature': ...}.",
            ),
            (
                {**judge(), "promt": "x"},
                "steps: judge: promt: it is not an argument; did you mean 'prompt'?",
            ),
            (
                {**judge(), "prompt_column": "x"},
                "steps: judge: prompt_column: a step asks by prompt or messages; use one of them.",
            ),
            (
                {**judge(), "engine_args": {}},
                "steps: judge: engine_args: all steps share it; give it to the task instead.",
            ),
            ({"prompt": "{row.a}"}, "steps: 1: name: a value is needed here; none was given."),
            (
                "judge",
                "steps: 1: it must be a step, such as Step('draft', prompt='...'), but it is 'judge'.",
            ),
            (
                judge(sampling={"temperatur": 1}),
                "steps: judge: sampling: temperatur: vLLM has no such sampling parameter; did you mean "
                "'temperature'?",
            ),
            (
                judge(sampling={"max_tokens": "many"}),
                "steps: judge: sampling: max_tokens: it must be a whole number, but it is 'many'.",
            ),
            (
                judge(sampling=["temperature"]),
                "steps: judge: sampling: it must be a dictionary, but it is ['temperature'].",
            ),
            (
                judge(response_format={"type": "object", "properties": {"a": {"type": "integr"}}}),
                "steps: judge: response_format: the schema is not a JSON schema ($.properties.a.type: "
                "'integr' is not a type of JSON; did you mean 'integer'?); correct it.",
            ),
            (
                judge(response_format=Verdict),
                "steps: judge: response_format: the class 'Verdict' does not travel with a step; give its "
                "schema, Verdict.model_json_schema().",
            ),
            (
                judge(response_format=[Verdict.model_json_schema()["title"]]),
                "steps: judge: response_format: it must be 'text', 'json_object' or a JSON schema (such as "
                "Model.model_json_schema()), but it is ['Verdict'].",
            ),
            (
                judge(when=("draft_score", "in", {1, 2})),
                "steps: judge: when: a set has no order, so each attempt may read it as another job; give a "
                "list.",
            ),
            (
                judge(when=("draft_score", "<", math.nan)),
                "steps: judge: when: ('draft_score', '<', nan) has the number nan, which JSON can't hold; "
                "remove it.",
            ),
            (
                judge(sampling={"seed": object}),
                "steps: judge: sampling: it can't be written as JSON (Unable to serialize unknown type: "
                "<class 'type'>); use texts, numbers, lists and dictionaries alone.",
            ),
            (
                {**judge(), "name": "two\nlines"},
                "steps: 1: name: it begins the names of columns, so it must be a letter and up to 39 "
                "letters, digits or '_', but it is 'two\\nlines'.",
            ),
            (
                judge(on_truncated="drop"),
                "steps: judge: on_truncated: it must be 'keep' or 'error', but it is 'drop'.",
            ),
        ],
        ids=lambda value: value[:40] if isinstance(value, str) else "",
    )
    def test_a_mistake_names_its_step(self, step: Any, sentence: str) -> None:
        assert refused(DRAFT, step) == sentence

    @pytest.mark.parametrize("steps", [[], "draft", {"name": "draft"}], ids=str)
    def test_only_a_list_of_steps_is_taken(self, steps: Any) -> None:
        with pytest.raises(SpecError, match=r"^Task 't': steps: it must be a list of at least one step, but"):
            batch(prompt=None, steps=steps)

    def test_sampling_of_the_task_is_named_without_a_step(self) -> None:
        assert refused(DRAFT, sampling={"temperatur": 1}).startswith("sampling: temperatur: ")

    def test_a_prompt_beside_steps_is_refused(self) -> None:
        assert refused(DRAFT, system_prompt="x").startswith("system_prompt: it has no effect together with")

    @pytest.mark.parametrize(
        ("name", "remedy"),
        [
            ("step", "did you mean 'steps'?"),
            ("stages", "did you mean 'steps'?"),
            ("when", "put it into a step, steps=[Step(..., when=...)]."),
            ("on_rejected", "put it into a step, steps=[Step(..., on_rejected=...)]."),
        ],
    )
    def test_misplaced_arguments_are_understood(self, name: str, remedy: str) -> None:
        assert refused(DRAFT, **{name: "x"}) == f"{name}: it is not an argument; {remedy}"


def test_an_unknown_parameter_of_a_step_is_logged(
    ray: FakeRay, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    operator = batch(prompt=None, steps=[DRAFT, judge(sampling={"vllm_of_tomorrow": 1})])
    left(operator).execute(run.context())
    assert "has no 'vllm_of_tomorrow'; the cluster's version decides." in capsys.readouterr().out
