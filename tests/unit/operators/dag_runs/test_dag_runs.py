# SPDX-License-Identifier: Apache-2.0
"""Whole DAG runs in this process: real task runner, real trigger, real XComs and assets, a fake Jobs API."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from airflow.sdk import DAG, Asset, task

from airflow_provider_raybatch.contract.failures import FailureClass
from airflow_provider_raybatch.decorators.ray_batch import ray_batch_task
from airflow_provider_raybatch.operators.ray_batch import RayBatchInferenceOperator
from tests.support.batches import batch, failing, spec_of_job
from tests.support.fake_ray import FakeRay, expected_result, lasting

RunDag = Callable[[Any], Any]


def xcom(run: Any, task_id: str, map_index: int = -1, key: str = "return_value") -> Any:
    from airflow.models.xcom import XComModel
    from airflow.utils.session import create_session
    from sqlalchemy import select

    wanted = {"task_id": task_id, "map_index": map_index, "key": key}
    with create_session() as session:
        all_of_run = select(XComModel.value).filter_by(dag_id=run.dag_id, run_id=run.run_id)
        value = session.scalar(all_of_run.filter_by(**wanted))
    return json.loads(value) if isinstance(value, str) and value.startswith("{") else value


def asset_extras(run: Any) -> list[dict[str, Any]]:
    from airflow.models.asset import AssetEvent
    from airflow.utils.session import create_session
    from sqlalchemy import select

    with create_session() as session:
        return list(session.scalars(select(AssetEvent.extra).filter_by(source_dag_id=run.dag_id)))


def rendered_fields(run: Any, task_id: str) -> Any:
    from airflow.models.taskinstance import TaskInstance
    from airflow.utils.session import create_session
    from sqlalchemy import select
    from sqlalchemy.orm import joinedload

    with_fields = select(TaskInstance).options(joinedload(TaskInstance.rendered_task_instance_fields))
    with create_session() as session:
        ti = session.scalars(with_fields.filter_by(dag_id=run.dag_id, task_id=task_id)).unique().one()
        return ti.rendered_task_instance_fields.rendered_fields


CLOSING_LINE = "2 rows ok, 1 failed (engine: it broke), 1 resumed, 3 tokens generated, 3 min 5 s, 1.50 EUR"


@pytest.mark.parametrize("deferrable", [False, True])
def test_result_link_and_asset_event(
    ray: FakeRay, dag_test: RunDag, deferrable: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    ray.script = lasting(requests=6)
    with DAG(f"result_{deferrable}", schedule=None) as dag:
        batch(task_id="label", deferrable=deferrable, outlets=[Asset("s3://lake/out/")], timeout=600)
    run = dag_test(dag)
    assert run.state == "success"
    (submission_id,) = ray.jobs
    result = xcom(run, "label")
    assert result == expected_result(ray, submission_id)
    assert xcom(run, "label", key="_link_RayDashboardLink") == result["dashboard_url"]
    (extra,) = asset_extras(run)
    for name in ("manifest_uri", "rows", "errors", "tokens", "submission_id"):
        assert extra[name] == result[name]
    told = capfd.readouterr()
    assert CLOSING_LINE in closing_lines(told)
    assert "XCom not found" not in told.out + told.err
    dag_test(dag)  # The next run finds the figures of this one among its XComs.
    before = "2 ok, 1 failed, 3 min 5 s, 1.50 EUR"
    assert f"{CLOSING_LINE} | last run: {before}" in closing_lines(capfd.readouterr())


def closing_lines(told: Any) -> str:
    return "\n".join(line for line in (told.out + told.err).splitlines() if " rows ok" in line)


@pytest.mark.parametrize("deferrable", [False, True])
def test_failure_fails_the_run(ray: FakeRay, dag_test: RunDag, deferrable: bool) -> None:
    ray.script = failing(FailureClass.USER_ERROR, requests=6)
    with DAG(f"failure_{deferrable}", schedule=None) as dag:
        batch(task_id="label", deferrable=deferrable, retries=3)
    run = dag_test(dag)
    assert run.state == "failed"
    assert len(ray.jobs) == 1  # no retry would have helped


@pytest.mark.parametrize("deferrable", [False, True])
def test_a_retry_after_success_returns_the_same(ray: FakeRay, dag_test: RunDag, deferrable: bool) -> None:
    ray.script = lasting(requests=6)
    handed_over: list[Any] = []

    def fail_once(context: Any, result: Any) -> None:
        handed_over.append(result)
        if context["ti"].try_number == 1:
            raise ConnectionError("what follows the task is away")

    with DAG(f"after_success_{deferrable}", schedule=None) as dag:
        batch(
            task_id="label", deferrable=deferrable, retries=1, retry_delay=timedelta(0),
            outlets=[Asset("s3://lake/out/")], post_execute=fail_once,
        )  # fmt: skip
    run = dag_test(dag)
    assert run.state == "success"
    assert len(ray.jobs) == 1
    assert handed_over == [xcom(run, "label")] * 2
    assert [extra["submission_id"] for extra in asset_extras(run)] == list(ray.jobs)


def test_execution_timeout_stops_the_job(ray: FakeRay, dag_test: RunDag) -> None:
    ray.script = lasting(600)
    with DAG("execution_timeout", schedule=None) as dag:
        batch(task_id="label", deferrable=False, execution_timeout=timedelta(seconds=12))
    run = dag_test(dag)
    assert run.state == "failed"
    assert len(ray.jobs) == 1
    assert not ray.active


def test_mapped_tasks_feed_one_and_decorated_ones_chain(ray: FakeRay, dag_test: RunDag) -> None:
    with DAG("chain", schedule=None) as dag:

        @task
        def find() -> list[dict[str, str]]:
            return [{"source": f"/in/{n}", "destination": f"/out/{n}"} for n in "ab"]

        label = RayBatchInferenceOperator.partial(
            task_id="label", prompt="{row.x}", model="m", poll_interval=0.05
        ).expand_kwargs(find())

        @ray_batch_task(model="m", destination="/judged", poll_interval=0.05)
        def judge(labelled: Any, ds: Any = None) -> dict[str, Any]:
            return {"source": list(labelled), "prompt": "Is {row.response} right?", "limit": 5}

        judge(label.output)
    run = dag_test(dag)
    assert run.state == "success"
    specs = [ray.spec(job.body) for job in ray.jobs.values()]
    by_map_index = {spec["submission"]["task"]["map_index"]: spec for spec in specs}
    assert set(by_map_index) == {0, 1, -1}
    judged = by_map_index[-1]
    assert judged["source"] == ["/out/a/data/c1", "/out/b/data/c1"]
    assert (judged["format"], judged["limit"], judged["id_column"]) == ("parquet", 5, None)
    assert xcom(run, "judge")["uri"] == "/judged/data/c1"
    assert rendered_fields(run, "judge")["limit"] == 5


def test_templates_and_xcoms_in_every_kind_of_argument(ray: FakeRay, dag_test: RunDag) -> None:
    with DAG("templated", schedule=None, params={"n": 2, "none": None}) as dag:

        @task
        def bound() -> int:
            return 3

        batch(
            task_id="label", poll_interval="0.{{ params.n }}", output_prefix="p{{ params.n }}_",
            destination="/out/{{ dag_run.run_after | ts_nodash }}",
            limit="{{ params.none }}", sampling={"max_tokens": "{{ params.n }}"}, max_errors=bound(),
            deferrable="{{ params.n == 2 }}", timeout="{{ params.n }}00",
        )  # fmt: skip
    assert dag_test(dag).state == "success"
    spec = spec_of_job(ray)
    assert (spec["limit"], spec["sampling"], spec["max_errors"]) == (None, {"max_tokens": 2}, 3)
    assert spec["destination"].startswith("/out/20")
    assert spec["output_prefix"] == "p2_"


@pytest.mark.parametrize("arguments", [{"prompt": "Name {{ row.name }}"}, {"destination": "{{ 'out' }}"}])
def test_what_is_refused_is_not_tried_again(
    ray: FakeRay, dag_test: RunDag, arguments: dict[str, str]
) -> None:
    with DAG("refused", schedule=None) as dag:
        batch(task_id="label", retries=3, **arguments)
    run = dag_test(dag)
    assert run.state == "failed"
    assert not ray.jobs
    assert [ti.try_number for ti in run.get_task_instances()] == [1]


def test_nothing_secret_is_rendered(
    ray: FakeRay, dag_test: RunDag, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    secret = "hf_verysecrettoken"
    monkeypatch.setenv("AIRFLOW_CONN_HF", json.dumps({"conn_type": "generic", "password": secret}))
    with DAG("secret", schedule=None) as dag:
        batch(task_id="label", deferrable=True, hf_conn_id="{{ 'h' ~ 'f' }}")
    run = dag_test(dag)
    assert run.state == "success"
    assert rendered_fields(run, "label")["hf_conn_id"] == "hf"
    shown = json.dumps([rendered_fields(run, "label"), xcom(run, "label")])
    assert secret not in shown + capsys.readouterr().out
