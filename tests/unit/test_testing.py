# SPDX-License-Identifier: Apache-2.0
"""What `check_dag` finds in a DAG, and what it leaves to the run."""

from __future__ import annotations

from typing import Any

import pytest
from airflow.sdk import DAG, Param, task

from airflow_provider_raybatch.contract.failures import SpecError
from airflow_provider_raybatch.decorators.ray_batch import ray_batch_task
from airflow_provider_raybatch.operators.ray_batch import RayBatchInferenceOperator
from airflow_provider_raybatch.operators.ray_job import RayJobOperator
from airflow_provider_raybatch.steps import Step
from airflow_provider_raybatch.testing import check_dag
from tests.support.grouping import grouped

GOOD: dict[str, Any] = {
    "task_id": "label", "source": "/in/{{ ds }}", "prompt": "Say {row.x}", "model": "m",
    "destination": "/out/{{ ts_nodash }}",
}  # fmt: skip


def dag_of(*tasks: dict[str, Any], **arguments: Any) -> DAG:
    with DAG("nightly", schedule=None, **arguments) as dag:
        for given in tasks or ({},):
            RayBatchInferenceOperator(**{**GOOD, **grouped(given)})
    return dag


def assert_accepted(dag: DAG) -> None:
    check_dag(dag)


@task
def find() -> list[str]:
    return ["/a"]


@pytest.mark.parametrize(
    ("arguments", "mistake"),
    [
        ({"destination": "{{ 'out/' ~ ds }}"}, "label: destination: 'out/"),
        ({"prompt": "Say {{ row.x }}"}, "label: prompt: a column stands in double braces"),
        ({"prompt": "{{ params.question }}"}, "label: prompt: 'Say it' names no column"),
        ({"limit": "{{ params.none or -1 }}"}, "label: limit: it must be at least 1, but it is '-1'."),
        ({"source": "/in/{{ dss }}"}, "label: source: Jinja can't render it ('dss' is undefined)"),
        ({"prompt": "{% if {row.x}"}, "label: prompt: Jinja can't render it (expected token"),
        ({"timeout": "{{ 'soon' }}"}, "label: timeout: 'soon' is not a duration"),
        ({"sampling": {"guided_json": "{{ params.none }}"}}, "label: sampling: guided_json: vLLM has no"),
        ({"prompt": None, "prompt_function": "no_such:make"}, "label: prompt_function: there is no module"),
        ({"response_format": "no_such:Model"}, "label: response_format: there is no module 'no_such'"),
        (
            {"prompt": None, "steps": [Step("draft", prompt="Say {{ row.x }}")]},
            "label: steps: a column stands in double braces",
        ),
        (
            {"prompt": None, "steps": [Step("draft", prompt="Say {row.x}", when=("x", "{{ 'is' }}", 1))]},
            "label: steps: draft: when: a condition is",
        ),
        ({"postprocess": "no_such:parse"}, "label: postprocess: there is no module 'no_such'"),
    ],
)
def test_mistakes_behind_templates_are_found(arguments: dict[str, Any], mistake: str) -> None:
    dag = dag_of(arguments, params={"question": "Say it", "none": Param(None, type=["null", "integer"])})
    with pytest.raises(SpecError) as caught:
        check_dag(dag)
    name, line = str(caught.value).split("\n")
    assert name == "DAG 'nightly':"
    assert line.startswith(mistake)


def test_all_tasks_mistakes_are_named() -> None:
    dag = dag_of({"limit": "{{ 0 }}"}, {"task_id": "other", "replicas": "{{ -1 }}"})
    with pytest.raises(SpecError) as caught:
        check_dag(dag)
    assert [line.split(":")[0] for line in str(caught.value).split("\n")[1:]] == ["label", "other"]


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"source": "{{ ti.xcom_pull('find') }}", "limit": "{{ var.value.rows }}"},
        {"destination": "/out/{{ params.unset }}"},
        {"source": "/in/{{ dag_run.conf['day'] }}", "deadline": "{{ data_interval_end }}"},
        {"destination": "/out/{{ macros.ds_add(ds, 1) }}/{{ dag_run.run_after | ts_nodash }}"},
    ],
)
def test_what_only_a_run_knows_is_let_through(arguments: dict[str, Any]) -> None:
    dag = dag_of(arguments, params={"unset": Param(type="string")})
    before = {
        name: getattr(dag.get_task("label"), name) for name in RayBatchInferenceOperator.template_fields
    }
    assert_accepted(dag)
    assert {name: getattr(dag.get_task("label"), name) for name in before} == before


def test_params_may_be_given() -> None:
    dag = dag_of({"limit": "{{ params.rows }}"}, params={"rows": 5})
    check_dag(dag, params={"rows": 7})
    with pytest.raises(SpecError, match="limit: it must be at least 1"):
        check_dag(dag, params={"rows": 0})


def test_xcoms_and_decorated_functions_are_unknown() -> None:
    with DAG("d", schedule=None) as dag:
        RayBatchInferenceOperator(**{**GOOD, "source": find(), "timeout": find()})
        ray_batch_task(_decide, model="{{ ds }}", replicas="{{ 2 }}")()
        RayJobOperator(task_id="job", entrypoint="python x.py {{ ds }}", metadata={"day": "{{ ds }}"})
    assert_accepted(dag)


def _decide() -> dict[str, Any]:
    return {}


@pytest.mark.parametrize("destinations", [["/out/{{ ds }}", "/out/{{ ds }}/"], ["/out", "/out"]])
def test_one_destination_of_two_tasks_is_a_mistake(destinations: list[str]) -> None:
    tasks = [{"task_id": f"t{n}", "destination": name} for n, name in enumerate(destinations)]
    with pytest.raises(SpecError, match=r"t1: destination: '/out.*' is that of t0, too"):
        check_dag(dag_of(*tasks))
    check_dag(dag_of(*({**one, "on_destination_owned": "take_over"} for one in tasks)))


def mapped(**arguments: Any) -> Any:
    return RayBatchInferenceOperator.partial(task_id="t", model="m", prompt="{row.x}", **arguments)


def test_each_map_index_is_checked() -> None:
    with DAG("d", schedule=None) as dag:
        mapped(destination="/out/{{ ti.map_index }}").expand(source=["/a", "b"])
    with pytest.raises(SpecError, match=r"t\[0\]: source: 'b' is relative"):
        assert_accepted(dag)
    with DAG("d", schedule=None) as dag:
        mapped(destination="/out").expand(source=["/a", "/b"])
    with pytest.raises(SpecError, match=r"destination: '/out' is that of t\[0\], too"):
        assert_accepted(dag)
    with DAG("d", schedule=None) as dag:
        mapped(max_errors=-1).expand_kwargs(find())
    with pytest.raises(SpecError, match=r"t\[0\]: max_errors: it must be at least 0"):
        assert_accepted(dag)


def test_right_mapped_tasks_are_let_through() -> None:
    with DAG("d", schedule=None) as dag:
        mapped().expand_kwargs([{"source": f"/in/{n}", "destination": f"/out/{n}"} for n in range(3)])
    assert_accepted(dag)
    with DAG("d", schedule=None) as dag:
        mapped(destination="/out/{{ ti.map_index }}").expand(source=find())
        ray_batch_task(_decide_by, model="m").expand(source=["/a", "/b"])
    assert_accepted(dag)


def _decide_by(source: str) -> dict[str, Any]:
    return {"source": source}
