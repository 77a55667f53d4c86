# SPDX-License-Identifier: Apache-2.0
"""Objects with arguments that belong together, as DAGs use them."""

from __future__ import annotations

import copy
import inspect
import pickle
import typing
from ast import literal_eval
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG, task
from airflow.sdk.execution_time.task_runner import _serialize_template_field
from airflow.serialization.serialized_objects import DagSerialization

from airflow_provider_raybatch.argument_fields import FIELDS_OF, GROUPS, fields_of
from airflow_provider_raybatch.arguments import (
    Adapters,
    Advanced,
    ArgumentGroup,
    Embed,
    Images,
    Limits,
    Output,
    Reuse,
    Score,
    Tools,
)
from airflow_provider_raybatch.contract.failures import SpecError
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.exceptions import RayBatchFailException
from airflow_provider_raybatch.operators.arguments import build_spec
from airflow_provider_raybatch.operators.ray_batch import RayBatchInferenceOperator
from airflow_provider_raybatch.testing import check_dag
from tests.support.airflow_tasks import Run
from tests.support.approved import AssertSentences
from tests.support.batches import batch, spec_of_job
from tests.support.fake_ray import FakeRay

ADD = [{"type": "function", "function": {"name": "add"}}]
EACH: dict[str, Any] = {
    "images": Images("photo", image_roots=["/{{ params.x }}"]),
    "model_task": Embed(chunk_tokens="{{ params.n }}"),
    "adapter": Adapters({"a": "/adapters/{{ params.x }}"}, adapter_column="customer"),
    "tools": Tools(ADD, tool_call_parser="{{ params.x }}"),
    "output_options": Output(response_column="{{ params.x }}", rows_per_part="{{ params.n }}"),
    "reuse": Reuse("/kept/{{ params.x }}", reuse_max_age="{{ params.n }}"),
    "limits": Limits(max_gpu_hours="{{ params.n }}", currency="EUR"),
    "advanced": Advanced(batch_size="{{ params.n }}", chat_template="{{ messages }}"),
}
CONTEXT: Any = {"params": {"x": "y", "n": 3}}


def fields(name: str) -> dict[str, Any]:
    """What the object of an argument gives where templates are rendered."""
    text = repr(dict(EACH[name])).replace("{{ params.x }}", "y").replace("'{{ params.n }}'", "3")
    found: dict[str, Any] = literal_eval(text)
    return found


def given(operator: RayBatchInferenceOperator, name: str) -> dict[str, Any]:
    spec = build_spec(operator.arguments())
    expected = BatchInferenceSpec(**{**spec.model_dump(), **fields(name)})
    assert spec == expected
    return {field: getattr(spec, field) for field in fields(name)}


@pytest.mark.parametrize("kind", [kind for kinds in GROUPS.values() for kind in kinds])
def test_choices_are_those_of_the_spec(kind: type[ArgumentGroup]) -> None:
    for name, hint in typing.get_type_hints(kind.__init__).items():
        choices = [set(typing.get_args(one)) for one in typing.get_args(hint) if "Literal" in str(one)]
        annotation = BatchInferenceSpec.model_fields[name].annotation if name != "return" else None
        if choices:
            assert choices == [{one for one in _values(annotation) if isinstance(one, str)}]


def _values(annotation: Any) -> list[Any]:
    inner = typing.get_args(annotation)
    return [value for one in inner for value in _values(one)] if inner else [annotation]


@pytest.mark.parametrize("name", EACH)
def test_templates_inside_are_rendered(name: str) -> None:
    for native in (False, True):
        with DAG("d", schedule=None, render_template_as_native_obj=native) as dag:
            operator = batch(**{name: EACH[name]})
        operator.render_template_fields({**CONTEXT, "dag": dag})
        assert given(operator, name)
        _serialize_template_field(getattr(operator, name), name)


@pytest.mark.parametrize("name", EACH)
def test_an_xcom_inside_is_a_dependency_and_resolved(name: str) -> None:
    @task
    def find() -> str:
        return "x"

    with DAG("d", schedule=None):
        last = [*EACH[name]][-1]
        operator = batch(**{name: {**EACH[name], last: find()}})
        whole = batch(task_id="u", **{name: find()})
    assert (operator.upstream_task_ids, whole.upstream_task_ids) == ({"find"}, {"find__1"})


def test_params_of_the_dag_may_stand_inside() -> None:
    with DAG("d", schedule=None, params={"hours": 8}) as dag:
        operator = batch(limits=Limits(max_gpu_hours=dag.param("hours")))  # type: ignore[arg-type]
    run: Any = {"params": {"hours": 8}, "dag_run": SimpleNamespace(conf={}), "dag": dag}
    operator.render_template_fields(run)
    assert build_spec(operator.arguments()).max_gpu_hours == 8


@pytest.mark.parametrize("name", EACH)
def test_mapped_tasks_take_it_once_or_for_each(name: str) -> None:
    plain = {"task_id": "t", "model": "m", "prompt": "{row.x}", "destination": "/out", "source": "/in"}
    with DAG("d", schedule=None):
        once = RayBatchInferenceOperator.partial(**plain, **{name: EACH[name]}).expand(limit=[1, 2])
        each = RayBatchInferenceOperator.partial(**{**plain, "task_id": "u"}).expand(**{name: [EACH[name]]})
    for operator in (once.unmap({"limit": 1}), each.unmap({name: dict(EACH[name])})):
        operator.render_template_fields(CONTEXT)
        assert given(operator, name)


def test_one_object_in_two_tasks_is_rendered_for_each() -> None:
    shared = Limits(max_gpu_hours="{{ params.n }}")
    with DAG("d", schedule=None):
        operators = [batch(task_id=f"t{number}", limits=shared) for number in range(2)]
    for number, operator in enumerate(operators):
        operator.render_template_fields({"params": {"n": number + 1}})  # type: ignore[typeddict-item]
    assert [build_spec(one.arguments()).max_gpu_hours for one in operators] == [1, 2]
    assert shared == {"max_gpu_hours": "{{ params.n }}"}


def test_defaults_of_a_dag_are_merged_name_by_name() -> None:
    defaults = {
        "limits": Limits(max_gpu_hours=8, currency="EUR"),
        "images": {"image_roots": ["/photos"]},
        "reuse": "/kept",
        "max_cost": 5,
    }
    plain = {"model": "m", "prompt": "{row.x}", "destination": "/out", "source": "/in"}
    with DAG("d", schedule=None, default_args=defaults):
        own = RayBatchInferenceOperator(
            task_id="own",
            images="photo",
            limits={"max_gpu_hours": 9, "max_tokens_total": 7},
            reuse=Reuse(deduplicate=False),
            **plain,
        )
        none = RayBatchInferenceOperator(task_id="none", **plain)
        mapped = RayBatchInferenceOperator.partial(task_id="mapped", limits=Limits(max_gpu_hours=9), **plain)
        mapped = mapped.expand(limit=[1])
    spec = build_spec(own.arguments())
    assert (spec.max_gpu_hours, spec.max_tokens_total, spec.currency, spec.max_cost) == (9, 7, "EUR", 5)
    assert (spec.images, spec.image_roots) == (["photo"], ["/photos"])
    assert (spec.reuse, spec.deduplicate) == ("/kept", False)
    assert build_spec(none.arguments()).max_gpu_hours == 8
    spec = build_spec(mapped.unmap({"limit": 1}).arguments())
    assert (spec.max_gpu_hours, spec.currency) == (9, "EUR")


def test_empty_limits_and_output_options_are_not_given(ray: FakeRay, run: Run) -> None:
    empty = {name: nothing for name in GROUPS for nothing in (None, "", {}, "None", "{}")}
    assert build_spec(batch(**empty).arguments()) == build_spec(batch().arguments())
    batch(limits=Limits(max_gpu_hours=None), output_options=Output(response_column="")).execute(run.context())
    assert spec_of_job(ray)["max_gpu_hours"] is None


def test_a_dag_with_objects_has_one_hash() -> None:
    def dag() -> Any:
        with DAG("d", schedule=None) as made:
            for number, (name, value) in enumerate(EACH.items()):
                batch(task_id=f"t{number}", **{name: copy.deepcopy(value)})
            batch(task_id="sets", images=Images(column for column in ("a", "b")))
        return DagSerialization.to_dict(made)

    assert dag() == dag()
    assert "0x" not in str(dag())


@pytest.mark.parametrize("name", EACH)
def test_objects_are_dictionaries(name: str) -> None:
    one = EACH[name]
    assert copy.deepcopy(one) == one == pickle.loads(pickle.dumps(one))
    assert fields_of({name: one}) == dict(one)
    assert fields_of({name: str(dict(one))}) == dict(one)
    assert set(one) <= set(FIELDS_OF[name])


def test_signatures_document_what_they_take() -> None:
    for kinds in GROUPS.values():
        for kind in kinds:
            names = set(inspect.signature(kind.__init__).parameters) - {"self"}
            assert all(f":param {name}:" in inspect.getdoc(kind) for name in names)  # type: ignore[operator]


def test_mistakes_in_objects(assert_sentences: AssertSentences) -> None:
    assert_sentences(batch, SpecError)


def test_one_of_a_score_alone_is_refused_by_its_own_name() -> None:
    with pytest.raises(SpecError, match="document"):
        batch(prompt=None, model_task=Score(query="q"))


class TestRenderingOfObjects:
    @pytest.mark.parametrize(
        ("name", "returned", "default"),
        [
            (
                "advanced",
                {"chat_template": "x", "sampling_column": "{{ params.x }}"},
                {"batch_size": "{{ params.n }}"},
            ),
            ("advanced", '{"sampling_column": "{{ params.x }}"}', {"batch_size": "{{ params.n }}"}),
            ("reuse", "/kept/{{ params.x }}", {"reuse_max_age": "{{ params.n }}"}),
        ],
    )
    def test_xcoms_of_mapped_tasks_are_no_templates(self, name: str, returned: Any, default: Any) -> None:
        """Else what an upstream task returns could read connections and variables."""
        plain = {"model": "m", "prompt": "{row.x}", "destination": "/out", "source": "/in"}
        with DAG("d", schedule=None, default_args={name: default}):
            mapped = RayBatchInferenceOperator.partial(task_id="t", **plain).expand(**{name: [returned]})
        operator = mapped.unmap({name: returned})
        env = operator.get_template_env()
        operator._do_render_template_fields(operator, [name], CONTEXT, env, {id(returned)})
        text = str(getattr(operator, name))
        assert ("params.x" in text, "params.n" in text) == (True, False)

    def test_chat_templates_elsewhere_are_templates(self) -> None:
        operator = batch(runtime_env={"env_vars": {"chat_template": "{{ params.x }}"}})
        operator.render_template_fields(CONTEXT)
        assert operator.runtime_env == {"env_vars": {"chat_template": "y"}}

    def test_a_mistake_beside_a_chat_template_is_one_sentence(self) -> None:
        operator = batch(advanced=Advanced(chat_template="{{ messages }}", batch_size="{{ row.t }}"))
        with pytest.raises(RayBatchFailException, match="advanced: a column stands in double"):
            operator.render_template_fields(CONTEXT)
        with pytest.raises(SpecError, match="advanced: a column stands"):
            check_dag(in_dag(advanced=Advanced(chat_template="x", batch_size="{{ row.t }}")))

    def test_native_objects_keep_their_types(self) -> None:
        with DAG("d", schedule=None, render_template_as_native_obj=True) as dag:
            operator = batch(
                engine="ray_data_llm",
                advanced=Advanced(
                    processor={"concurrency": "{{ params.n }}"}, sampling_column="{{ params.d }}"
                ),
                adapter="{{ params.d }}",
            )
        operator.render_template_fields({"params": {"n": 3, "d": "2024"}, "dag": dag})  # type: ignore[typeddict-item]
        assert operator.advanced == {"processor": {"concurrency": 3}, "sampling_column": "2024"}
        assert operator.adapter == "2024"

    def test_values_beside_an_unknown_one_are_checked(self) -> None:
        limits = Limits(max_gpu_hours="{{ var.value.x }}", max_row_attempts="{{ params.n - 3 }}")
        with pytest.raises(SpecError, match="max_row_attempts: it must be at least 1"):
            check_dag(in_dag(limits=limits))


def in_dag(**arguments: Any) -> DAG:
    with DAG("d", schedule=None, params={"n": 3}) as dag:
        batch(**arguments)
    return dag


@pytest.mark.parametrize(
    ("default", "value", "merged"),
    [
        ({"limits": Limits(currency="EUR")}, {"limits": '{"max_gpu_hours": 3}'}, {"max_gpu_hours": 3}),
        ({"limits": Limits(currency="EUR")}, {"limits": ""}, {"currency": "EUR"}),
        ({"model_task": Embed(chunk_tokens=5)}, {"model_task": "generate"}, {"chunk_tokens": None}),
        ({"adapter": Adapters({"a": "/x"}, adapter_column="c")}, {"adapter": "/one"}, {"adapter": "/one"}),
        (
            {"images": Images(image_hosts=["a.b"])},
            {"images": '{"images": "photo"}'},
            {"image_hosts": ["a.b"]},
        ),
    ],
)
def test_defaults_are_kept_unless_replaced(default: Any, value: Any, merged: Any) -> None:
    with DAG("d", schedule=None, default_args=default):
        spec = build_spec(batch(**value).arguments())
    assert {name: getattr(spec, name) for name in merged} == merged
