# SPDX-License-Identifier: Apache-2.0
"""Operators in DAG objects: templated arguments, unchanged ones, and the same DAG on each parse."""

from __future__ import annotations

import copy
import inspect
import json
import os
import subprocess
import sys
import time
from typing import Any

import pytest
from airflow.sdk import DAG, literal

from airflow_provider_raybatch.exceptions import RayBatchFailException
from airflow_provider_raybatch.operators.arguments import build_spec
from airflow_provider_raybatch.operators.ray_batch import RayBatchInferenceOperator
from airflow_provider_raybatch.operators.ray_job import RayJobOperator
from airflow_provider_raybatch.sensors.ray_job import RayJobSensor
from tests.support.airflow_tasks import Run
from tests.support.approved import AssertSentences
from tests.support.batches import batch
from tests.support.fake_ray import FakeRay

ARGUMENTS: dict[str, Any] = {
    "source": ["s3://lake/in/{{ ds }}/"],
    "prompt": 'Answer as {"label": "..."} for {row.name}, {{ ds }}',
    "model": "m",
    "destination": "s3://lake/out/{{ ds }}/",
    "sampling": {"temperature": 0, "structured_outputs": {"json": {"properties": {"b": {}, "a": {}}}}},
    "engine_args": {"max_model_len": 128},
    "runtime_env": {"env_vars": {"B": "1", "A": "2"}},
}
CONTEXT: Any = {"ds": "2026-01-01", "params": {"n": 3}}


def rendered(operator: RayBatchInferenceOperator) -> RayBatchInferenceOperator:
    operator.render_template_fields(CONTEXT)
    return operator


@pytest.mark.parametrize("kind", [RayBatchInferenceOperator, RayJobOperator, RayJobSensor])
def test_every_argument_is_rendered(kind: Any) -> None:
    own = {
        name
        for each in kind.__mro__
        if each.__module__.startswith("airflow_provider_raybatch") and "__init__" in vars(each)
        for name in inspect.signature(each.__init__).parameters
    }
    assert own - {"self", "kwargs", "args"} == set(kind.template_fields)


def test_an_xcom_in_any_argument_is_a_dependency() -> None:
    with DAG("d", schedule=None):
        first = RayJobOperator(task_id="first", entrypoint="x")
        arguments = {"max_errors": first.output, "timeout": first.output, "destination": first.output["uri"]}
        first_use = RayBatchInferenceOperator(task_id="t", **{**ARGUMENTS, **arguments})
        job = RayJobOperator(task_id="j", entrypoint="x", entrypoint_memory=first.output)
    assert (first_use.upstream_task_ids, job.upstream_task_ids) == ({"first"}, {"first"})


def test_templates_of_a_raw_job(ray: FakeRay, run: Run) -> None:
    operator = RayJobOperator(
        task_id="t", entrypoint="x", entrypoint_num_cpus="0.{{ params.n }}", entrypoint_num_gpus="{{ none }}",
        entrypoint_memory="{{ params.n }}000", entrypoint_resources={"disk": "{{ params.n }}"},
        wait_for_completion="{{ false }}", poll_interval=0.05,
    )  # fmt: skip
    operator.render_template_fields(CONTEXT)
    operator.execute(run.context())
    (job,) = ray.jobs.values()
    given = {name: value for name, value in job.body.items() if name.startswith("entrypoint_")}
    assert {name: value for name, value in given.items() if value is not None} == {
        "entrypoint_num_cpus": 0.3, "entrypoint_memory": 3000, "entrypoint_resources": {"disk": 3.0},
    }  # fmt: skip


def test_expressions_are_rendered_and_braces_are_text() -> None:
    operator = rendered(RayBatchInferenceOperator(task_id="t", limit="{{ params.n }}", **ARGUMENTS))
    assert operator.source == ["s3://lake/in/2026-01-01/"]
    assert operator.destination == "s3://lake/out/2026-01-01/"
    assert operator.prompt == 'Answer as {"label": "..."} for {row.name}, 2026-01-01'
    assert operator.limit == "3"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"prompt": "T {{ row.x }}"}, "prompt: a column stands in double braces, which Airflow fills in"),
        ({"system_prompt": "{{ row['x y'] }}"}, "system_prompt: a column stands in double braces"),
        ({"messages": [{"role": "user", "content": "{{ row.x }}"}]}, "messages: a column stands in double"),
        ({"destination": "/{{ ts_nodash }}"}, "destination: {{ ts_nodash }} is undefined, since this run has "
         "no logical date; use {{ dag_run.run_after | ts_nodash }}, which each run has."),
        ({"prompt": "{% if {row.x}"}, "prompt: Jinja can't render it (expected token"),
        ({"sampling": {"stop": ["{{ nothing.at_all }}"]}}, "sampling: Jinja can't render it ('nothing' is"),
    ],
)  # fmt: skip
def test_an_expression_that_fails_is_one_sentence(arguments: dict[str, Any], message: str) -> None:
    given = {**ARGUMENTS, "source": "/in", "prompt": "{row.x}", "destination": "/out", **arguments}
    with DAG("d", schedule=None):
        operator = RayBatchInferenceOperator(task_id="t", **given)
    with pytest.raises(RayBatchFailException) as caught:
        operator.render_template_fields({"params": {}})  # type: ignore[typeddict-item]  # all that is needed
    assert str(caught.value).startswith(message)


def test_arguments_are_never_changed(ray: FakeRay, run: Run) -> None:
    arguments = copy.deepcopy(ARGUMENTS)
    rendered(RayBatchInferenceOperator(task_id="t", poll_interval=0.05, **arguments)).execute(run.context())
    assert arguments == ARGUMENTS
    (job,) = ray.jobs.values()
    assert {"B": "1", "A": "2"}.items() <= job.body["runtime_env"]["env_vars"].items()


def test_bulk_text_never_goes_through_jinja() -> None:
    choices = [f"category {number} with a }} brace and a {{ brace\n" for number in range(100_000)]
    operator = batch(sampling={"structured_outputs": {"choice": choices}})
    started = time.thread_time()
    rendered(operator)
    assert time.thread_time() - started < 5  # through Jinja it takes about a minute
    assert operator.sampling is not None
    assert operator.sampling["structured_outputs"]["choice"] == choices


def test_text_like_an_expression_can_be_kept_literally() -> None:
    schema = {"pattern": "^{{.*}}$"}
    operator = batch(sampling=literal(schema))
    assert rendered(operator).sampling == schema


def test_a_chat_template_in_advanced_is_left_alone() -> None:
    template = "{% for message in messages %}{{ message.content }}{% endfor %}"
    operator = batch(chat_template=template)
    assert rendered(operator).advanced == {"chat_template": template}
    operator = rendered(batch(chat_template=literal(template)))  # by someone who expects it to be rendered
    spec = build_spec(operator.arguments())
    assert spec.chat_template == template


def test_line_statements_of_the_dags_own_jinja_still_work() -> None:
    with DAG("d", schedule=None, jinja_environment_kwargs={"line_statement_prefix": "%"}):
        operator = batch(prompt="% if ds\nyes\n% endif\n")
    assert rendered(operator).prompt == "yes\n"


DAG_FILE = """
import json, sys
from airflow.sdk import DAG, Asset, task
from airflow.serialization.serialized_objects import DagSerialization
from airflow_provider_raybatch.decorators.ray_batch import ray_batch_task
from airflow_provider_raybatch.operators.ray_batch import RayBatchInferenceOperator
from airflow_provider_raybatch.operators.ray_job import RayJobOperator
from airflow_provider_raybatch.sensors.ray_job import RayJobSensor
from airflow_provider_raybatch.steps import Step

with DAG("d", schedule=None) as dag:
    arguments = json.loads(sys.argv[1])
    first = RayBatchInferenceOperator(task_id="first", outlets=[Asset("s3://lake/out/")], **arguments)
    RayBatchInferenceOperator.partial(task_id="mapped", prompt="p", model="m", destination="/out").expand(
        source=["/a", "/b"]
    )
    job = RayJobOperator(task_id="job", entrypoint="x", runtime_env={"pip": ["b", "a"]}, deferrable=True)
    RayJobSensor(task_id="sensor", submission_id=job.output)
    condition = ("draft_response", "!=", "x")
    when = (one for one in [condition])
    steps = [Step("draft", prompt="{row.x}"), Step("judge", prompt="{row.draft_response}", when=when)]
    plain = {"source": "/in", "model": "m", "chat_template_kwargs": {"team": "{{ params.team }}"}}
    RayBatchInferenceOperator(task_id="steps", destination="/out", steps=steps, **plain)
    RayBatchInferenceOperator.partial(task_id="mapped_steps", destination="/out", **plain).expand(
        steps=[[steps[0]], [steps[0], Step("again", prompt="{row.draft_response}", when=iter([condition]))]]
    )

    @ray_batch_task(model="m", destination="/out")
    def decorated(source):
        return {"source": source, "prompt": "p"}

    decorated.expand(source=first.output)
# Airflow's own hash of a DAG sorts the keys, too.
print(json.dumps(DagSerialization.to_dict(dag), sort_keys=True))
"""


def test_a_dag_serialises_identically_on_each_parse(tmp_path: Any) -> None:
    def parse(seed: str) -> str:
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        done = subprocess.run(
            [sys.executable, "-c", DAG_FILE, json.dumps(ARGUMENTS)],
            capture_output=True, text=True, env=environment, timeout=120, check=True,
        )  # fmt: skip
        return done.stdout.splitlines()[-1]

    first, second = parse("1"), parse("2")
    assert first == second
    for shown in ("RayDashboardLink", '"when": [["draft_response", "!=", "x"]]', "{{ params.team }}"):
        assert shown in first
    assert " at 0x" not in first, "the address of an object"  # a temporary folder's name may have 0x


def test_what_a_template_must_leave(ray: FakeRay, run: Run, assert_sentences: AssertSentences) -> None:
    def refused(argument: str) -> None:
        rendered(batch(**{argument: "{{ 'x' }}"})).execute(run.context())

    assert_sentences(refused, RayBatchFailException)
    assert not ray.jobs
