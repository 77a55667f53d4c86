# SPDX-License-Identifier: Apache-2.0
"""No text of a cluster reaches Airflow's database in a form that PostgreSQL refuses, or steers a log page.

PostgreSQL takes neither NUL characters nor lone surrogates in JSON, and Airflow's triggerer ends when it
can't store an event. So each way in is tried with each way out.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import pytest
from airflow.sdk import Asset
from airflow.sdk.exceptions import TaskDeferred

from airflow_provider_raybatch.cluster.jobs_api.transport import RetryPolicy
from airflow_provider_raybatch.contract.events import Committed, Failed, Notice
from airflow_provider_raybatch.contract.failures import FailureClass, RaybatchError
from airflow_provider_raybatch.operators.ray_job import RayJobOperator
from airflow_provider_raybatch.sensors.ray_job import RayJobSensor
from airflow_provider_raybatch.triggers import ray_job
from airflow_provider_raybatch.triggers.ray_job import RayJobTrigger
from tests.support.airflow_tasks import Run
from tests.support.batches import batch
from tests.support.fake_ray import FakeRay, Script, summary
from tests.support.refused import HOSTILE, refused, unfit_for_logs

Scripting = Callable[[FakeRay, dict[str, Any]], Script]
IS_BATCH = "spec.json"


def failed(ray: FakeRay, body: dict[str, Any]) -> Script:
    return Script(status="FAILED", message=f"RuntimeError: {HOSTILE}", error_type=f"NEW_{HOSTILE}")


def setup(ray: FakeRay, body: dict[str, Any]) -> Script:
    return Script(status="FAILED", message=HOSTILE, error_type="RUNTIME_ENV_SETUP_FAILURE")


def logged(ray: FakeRay, body: dict[str, Any]) -> Script:
    return Script([HOSTILE, f"{HOSTILE * 3000}x"], [HOSTILE], status="FAILED", message=HOSTILE)


def told(ray: FakeRay, body: dict[str, Any]) -> Script:
    if IS_BATCH not in body["entrypoint"]:
        return logged(ray, body)
    event = Failed(failure_class=FailureClass.STORAGE, message=HOSTILE)
    return Script([ray.line(body, Notice(message=HOSTILE))], [ray.line(body, event, 1)], status="FAILED")


def committed(ray: FakeRay, body: dict[str, Any]) -> Script:
    if IS_BATCH not in body["entrypoint"]:
        return Script([HOSTILE])
    return Script([HOSTILE], [ray.line(body, Committed(summary=summary()))])


JOBS: list[Scripting] = [failed, setup, logged, told, committed]


def command(**arguments: Any) -> RayJobOperator:
    return RayJobOperator(task_id="t", entrypoint="true", poll_interval=0.05, **arguments)


def end(task: Any, run: Run) -> list[Any]:
    """Run a task to its end, and return what it raised or returned."""
    try:
        return [task.execute(run.context())]
    except RaybatchError as error:
        return [error]


@pytest.mark.parametrize("kind", [batch, command])
@pytest.mark.parametrize("script", JOBS)
def test_a_task_that_blocks(
    ray: FakeRay, run: Run, capsys: pytest.CaptureFixture[str], script: Scripting, kind: Any
) -> None:
    ray.script = script
    ends = end(kind(outlets=[Asset("s3://lake/out")]), run)
    out = [run.xcoms, run.store.values, *(event.extra for event in run.outlet_events.values())]
    assert refused([*ends, *out]) == []
    assert unfit_for_logs([*ends, *capsys.readouterr().out.splitlines()]) == []


@pytest.mark.parametrize("kind", [batch, command])
@pytest.mark.parametrize("script", JOBS)
async def test_a_deferred_task(
    ray: FakeRay, run: Run, capsys: pytest.CaptureFixture[str], script: Scripting, kind: Any
) -> None:
    def lasting(ray: FakeRay, body: dict[str, Any]) -> Script:
        done = script(ray, body)
        done.seconds = math.inf
        return done

    ray.script = lasting
    with pytest.raises(TaskDeferred) as caught:
        kind(deferrable=True).execute(run.context())
    for job in ray.jobs.values():
        job.script.seconds = 0.0
    trigger = caught.value.trigger
    assert refused(trigger.serialize()[1]) == []
    (event,) = [event async for event in trigger.run()]
    assert refused(json.loads(json.dumps(event.payload))) == []
    assert unfit_for_logs([event.payload, *capsys.readouterr().out.splitlines()]) == []


@pytest.mark.parametrize("script", JOBS)
@pytest.mark.parametrize("deferrable", [True, False])
def test_a_sensor(ray: FakeRay, run: Run, script: Scripting, deferrable: bool) -> None:
    ray.script = script
    ray.submit(submission_id="x")
    ends = end(RayJobSensor(task_id="t", submission_id="x", deferrable=deferrable), run)
    assert refused([run.xcoms]) == []
    assert unfit_for_logs(ends) == []


@pytest.mark.parametrize("code", [400, 401, 403, 404, 413, 500])
def test_an_answer_of_another_server(
    ray: FakeRay, run: Run, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    monkeypatch.setattr(RetryPolicy, "wait", lambda policy, attempt: 0.0)
    for path in ("/api/version", "/api/jobs/"):
        ray.stage("POST" if path.endswith("jobs/") else "GET", path, (code, f"status code 400 {HOSTILE}"))
    for task in (command(), command()):
        assert unfit_for_logs(end(task, run)) == []


async def test_a_failure_of_the_trigger_itself(ray: FakeRay, monkeypatch: pytest.MonkeyPatch) -> None:
    """Airflow would store the traceback of an exception that leaves a trigger."""
    hostile = HOSTILE.replace(
        "\udcff", ""
    )  # which breaks off the whole test run if the exception comes through

    async def failing(*args: Any, **kwargs: Any) -> Any:
        raise KeyError(hostile) from RuntimeError(hostile)

    monkeypatch.setattr(ray_job, "follow_to_the_end", failing)
    trigger = RayJobTrigger(ray_conn_id="ray_default", submission_id="x")
    (event,) = [event async for event in trigger.run()]
    assert unfit_for_logs(event.payload) == []
    assert event.payload["outcome"]["state"] == "unreachable"
    assert "failed (there is no " in event.payload["outcome"]["message"]
