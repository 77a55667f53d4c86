# SPDX-License-Identifier: Apache-2.0
"""Mistakes that no template decides are import errors of the DAG, and what may still change is none."""

from __future__ import annotations

import re
import warnings
from typing import Any

import pytest
from airflow.sdk import DAG, literal, task, task_group
from airflow.sdk.definitions.dag import dag as make_dag

from airflow_provider_raybatch.contract.arguments.vllm_names import VERSIONS
from airflow_provider_raybatch.contract.failures import SpecError
from airflow_provider_raybatch.decorators.ray_batch import ray_batch_task
from airflow_provider_raybatch.operators.ray_batch import RayBatchInferenceOperator
from airflow_provider_raybatch.operators.ray_job import RayJobOperator
from airflow_provider_raybatch.steps import Step
from tests.support.approved import AssertSentences
from tests.support.grouping import grouped

ACT = Step("act", prompt="{row.x}", tools=[{"function": {"name": "add"}}])
GOOD: dict[str, Any] = {
    "task_id": "t", "source": "/in/{{ ds }}", "prompt": "Say {row.x}", "model": "m",
    "destination": "/out/{{ ds }}",
}  # fmt: skip


def decide() -> dict[str, Any]:
    return {}


def parsed(**arguments: Any) -> RayBatchInferenceOperator:
    with DAG("d", schedule=None):
        return RayBatchInferenceOperator(**{**GOOD, **grouped(arguments)})


def test_a_mistake_is_found_while_the_dag_is_parsed(assert_sentences: AssertSentences) -> None:
    assert_sentences(parsed, SpecError)


@pytest.mark.parametrize(
    "arguments",
    [
        {"prompt": "{{ params.prompt }}"},
        {"prompt": "{{ params.a }}", "prompt_column": "{{ params.b }}"},
        {"prompt": "{{ params.a }}", "prompt_column": "c"},
        {"prompt": None, "messages": [{"role": "user", "content": "{{ params.a }}"}]},
        {"prompt": "Say it", "system_prompt": "{{ params.s }}"},
        {"prompt": "Say it", "images": "{{ params.i }}", "keep_images": True},
        {"prompt": None, "steps": [Step("read", prompt="{{ params.p }}", images="i")], "keep_images": True},
        *(
            {"prompt": None, "steps": [ACT], "tool_call_parser": "hermes", name: "{{ params.p }}"}
            for name in ("tool_call_parser", "engine", "engine_args", "sampling")
        ),
        {"prompt": None, "steps": "{{ params.p }}", "tool_call_parser": "hermes"},
        {"prompt": None, "model_task": "score", "query": "{{ params.q }}", "documents_column": "d"},
        {"prompt": None, "model_task": "score", "query": "q", "document": "{{ params.d }}", "top_n": 3},
        {"prompt": None, "model_task": "{{ params.t }}", "query": "q", "document": "{row.d}"},
        {"prompt": "{{ params.p }}", "model_task": "{{ params.t }}", "query": "{{ params.q }}"},
        {"prompt": "Say it", "sampling_column": "{{ params.c }}"},
        {"prompt": None, "prompt_column": "c", "system_prompt": "{{ params.s or '' }}"},
        {"model": None, "engine": "{{ params.engine }}"},
        {"engine": "{{ params.engine }}", "processor": {"batch_size": 3}},
        {"engine": "ray_data_llm", "processor": {"config": "{{ params.c }}"}, "model": "./served"},
        {"engine": "ray_data_llm", "processor": {"config": "{{ params.c }}"}, "sampling": {"max_length": 7}},
        {"engine": "ray_data_llm", "processor": {"config": "HttpRequestProcessorConfig"},
         "sampling": {"max_completion_tokens": 7}},
        {"reuse": "{{ params.store }}", "reuse_max_age": 60},
        {"orphan_timeout": "{{ params.x }}", "poll_interval": 86400},
        {"replicas": "{{ params.n }}", "num_cpus": "{{ params.n }}"},
        {"sampling": {"n": "{{ params.n }}", "structured_outputs": "{{ params.s }}"}},
        {"sampling": literal({"stop": "{{ x }}"})},
        {"source": lambda context, jinja_env: "/in"},
        {"source": "{{ params.lake }}/in", "destination": "s3{{ params.a }}://l/out"},
        {"destination": "s3://{{ params.bucket }}/out", "reuse": "s3://{{ ds }}"},
        {"source": ["https://{{ params.host }}/x.csv", "file:///{{ ds }}", "{% raw %}/in{% endraw %}"]},
        {"sampling": {"a_name_of_tomorrows_vllm": 1}},
        {"poll_interval": "None", "timeout": "", "deferrable": "", "cancel_on_kill": " ", "deadline": "None",
         "on_stale_state": "None", "ray_conn_id": "", "limit": ""},
    ],
)  # fmt: skip
def test_what_may_still_be_right_is_let_through(arguments: dict[str, Any]) -> None:
    assert parsed(**arguments).task_id == "t"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            {"engine_args": {"max_modl_len": 9}},
            "engine_args: vLLM X has no 'max_modl_len' (did you mean 'max_",
        ),
        ({"sampling": {"foo": 1}}, "sampling: vLLM X has no 'foo'; the cluster's version decides."),
        (
            {"prompt": None, "steps": [Step("a", prompt="{row.x}", sampling={"foo": 1})]},
            "sampling: vLLM X has no 'foo'; the",
        ),
    ],
)
def test_a_name_that_no_known_vllm_has_is_a_warning(arguments: dict[str, Any], sentence: str) -> None:
    with pytest.warns(UserWarning, match=re.escape(f"Task 't': {sentence.replace('X', VERSIONS)}")) as told:
        parsed(**arguments)
    assert [one.filename for one in told] == [__file__]


@pytest.mark.parametrize(
    "arguments",
    [
        {"engine_args": {"max_model_len": 9, "seed": 1}, "sampling": {"min_p": 0.1}},
        {"engine": "echo", "engine_args": {"seconds_per_token": 0.1}},
        {"engine": "ray_data_llm", "processor": {"config": "SGLangEngineProcessorConfig"},
         "engine_args": {"mem_fraction_static": 0.8}, "sampling": {"max_new_tokens": 7}},
    ],
)  # fmt: skip
def test_known_names_and_those_of_other_engines_give_no_warning(arguments: dict[str, Any]) -> None:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        parsed(**arguments)
    assert [one for one in told if issubclass(one.category, UserWarning)] == []


def test_jinja_delimiters_of_the_dag_make_any_text_a_template() -> None:
    with DAG("d", schedule=None, jinja_environment_kwargs={"variable_start_string": "<<"}):
        given = {"replicas": "<< params.n >>", "prompt": "<< params.prompt >>", "source": "<< a >>/{{ ds }}"}
        assert RayBatchInferenceOperator(**{**GOOD, **given}).replicas == "<< params.n >>"


@pytest.mark.parametrize(
    "name",
    ["deferrable", "poll_interval", "timeout", "cancel_on_kill", "on_stale_state",
     "deadline", "ray_conn_id", "replicas", "prompt", "sampling"],
)  # fmt: skip
def test_any_argument_takes_what_is_resolved_later(name: str) -> None:
    """A DAG's parameter and the item of a mapped group, besides XComs."""

    @make_dag(schedule=None)
    def parameters(value: Any = 1) -> None:
        RayBatchInferenceOperator(**{**GOOD, name: value})

    @task_group
    def group(value: Any) -> None:
        RayBatchInferenceOperator(**{**GOOD, name: value})

    assert parameters().task_ids == ["t"]
    with DAG("d", schedule=None) as dag:
        group.expand(value=[1, 2])
    assert dag.task_ids == ["group.t"]


@pytest.mark.parametrize("name", ["advanced", "prompt"])
def test_an_argument_that_is_not_rendered_takes_no_xcom(name: str) -> None:
    """The object's address would stand in the sentence, or in the serialised DAG."""

    class Unrendered(RayBatchInferenceOperator):
        template_fields = tuple(one for one in RayBatchInferenceOperator.template_fields if one != name)

    @task
    def find() -> str:
        return "{row.x}"

    def made(value: Any = 1) -> None:
        Unrendered(**{**GOOD, name: value})

    others = {one: GOOD[one] for one in GOOD if one != name}
    sentence = f"^(Task '[a-z.]+': )?{name}: it is not a template field, so it takes no XCom or DAG param"
    with DAG("d", schedule=None), pytest.raises(SpecError, match=sentence):
        made(find())
    with pytest.raises(SpecError, match=sentence):
        make_dag(schedule=None)(made)()
    with DAG("d", schedule=None), pytest.raises(SpecError, match=sentence):
        task_group(made).expand(value=["x"])
    with DAG("d", schedule=None):
        partial = Unrendered.partial(**others, **{name: find()}).expand(limit=[1])
    with pytest.raises(SpecError, match=sentence):
        partial.unmap({"limit": 1})._convert()
    with DAG("d", schedule=None):
        mapped = Unrendered.partial(**others).expand(**{name: find()})
    mapped.unmap({name: "{row.x}"})._convert()


@pytest.mark.parametrize("arguments", [{}, {"prompt": "Say it", "reuse_max_age": 60}, {"system_prompt": "s"}])
def test_what_a_decorated_function_may_return_is_unknown(arguments: dict[str, Any]) -> None:
    with DAG("d", schedule=None):
        assert ray_batch_task(decide, **grouped(arguments))().operator.task_id == "decide"


def test_a_mistake_in_the_decorator_is_found_while_parsed() -> None:
    with DAG("d", schedule=None), pytest.raises(SpecError, match=r"^Task 'decide': replicas: it must be a w"):
        ray_batch_task(decide, replicas=-1)()


def test_a_mapped_task_is_refused_when_it_runs() -> None:
    """Else Airflow would retry what fails while it makes the task of a map index."""
    with DAG("d", schedule=None):
        mapped = RayBatchInferenceOperator.partial(
            task_id="t", model="m", prompt="{row.x}", destination="/out"
        ).expand(source=["in"])
    assert mapped.unmap({"source": "in"}).source == "in"


def test_generators_become_lists() -> None:
    @task
    def find() -> str:
        return "/x"

    paths = {"/in/{{ ds }}": 1}
    operator = parsed(
        source=(f"/in/{n}" for n in range(2)),
        sampling={"structured_outputs": {"choice": (one for one in "ab")}},
        engine_args={"plugins": map(str, [1, 2])},
    )
    assert operator.source == ["/in/0", "/in/1"]
    assert operator.sampling == {"structured_outputs": {"choice": ["a", "b"]}}
    assert operator.engine_args == {"plugins": ["1", "2"]}
    viewed = parsed(source=paths.keys())
    viewed.render_template_fields({"ds": "2026-01-01"})  # type: ignore[typeddict-item]  # all that is needed
    assert viewed.source == ["/in/2026-01-01"]


def test_batch_files_need_no_prompt_while_parsing() -> None:
    lines = {"prompt": None, "format": "openai_batch"}
    for more in ({}, {"destination_format": "openai_batch"}, {"served_model_name": "{{ y }}"}):
        parsed(**lines, **more)
    parsed(prompt=None, format="{{ kind }}", destination_format="openai_batch", served_model_name="y")
    parsed(**lines, model_task="{{ task }}", on_overlong="truncate")
    for mistake in ({"prompt": "Say {row.body}"}, {"id_column": "x"}, {"response_format": "json_object"}):
        with pytest.raises(SpecError, match=f"{next(iter(mistake))}: "):
            parsed(**{**lines, **mistake})
    with pytest.raises(SpecError, match="served_model_name: "):
        parsed(served_model_name="y")


def test_mistakes_of_a_raw_job(assert_sentences: AssertSentences) -> None:
    def made(**arguments: Any) -> None:
        RayJobOperator(**{"task_id": "t", "entrypoint": "x", **dict.fromkeys(arguments, "{{ params.x }}")})
        RayJobOperator(**{"task_id": "t", "entrypoint": "x", **arguments})

    assert_sentences(made, SpecError)


def test_arguments_of_other_systems_name_ours(assert_sentences: AssertSentences) -> None:
    def refused(argument: str) -> SpecError:
        refusal = f"^Task 'decide': {argument}: it is not an argument"
        with DAG("d", schedule=None), pytest.raises(SpecError, match=refusal):
            ray_batch_task(decide, **{argument: 1})()
        with pytest.raises(SpecError) as caught:
            parsed(timeout=60, deadline="2100-01-01T00:00Z", **{argument: 1})
        assert caught.value.__suppress_context__, "Airflow's own refusal would be told, too"
        return caught.value

    assert_sentences(refused)
