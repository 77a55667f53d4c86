# SPDX-License-Identifier: Apache-2.0
"""`@task.ray_batch`: what its function returns lasts, and where it fails for good, no job is left."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.definitions.retry_policy import ExceptionRetryPolicy, RetryAction, RetryRule
from airflow.sdk.exceptions import (
    AirflowFailException,
    AirflowSensorTimeout,
    AirflowSkipException,
    TaskDeferred,
)
from airflow.sdk.execution_time.task_runner import _serialize_rendered_fields

from airflow_provider_raybatch.arguments import Limits
from airflow_provider_raybatch.cluster.follow.outcome import Outcome
from airflow_provider_raybatch.contract.failures import FailureClass
from airflow_provider_raybatch.contract.submission import order_package
from airflow_provider_raybatch.decorators.ray_batch import keep, ray_batch_task
from airflow_provider_raybatch.exceptions import RayBatchException, RayBatchFailException
from airflow_provider_raybatch.steps import Step
from tests.support.airflow_tasks import Run
from tests.support.batches import Died, batch, defer, spec_of_job
from tests.support.fake_ray import FakeRay, lasting


def made_of(function: Any, **arguments: Any) -> Any:
    with DAG("d", schedule=None):
        return ray_batch_task(function, poll_interval=0.05, **arguments)().operator


@pytest.mark.parametrize(
    ("error", "attempt", "stopped"),
    [
        pytest.param(AirflowFailException("no data"), 2, True, id="for good"),
        pytest.param(AirflowSkipException("no data"), 2, True, id="skipped"),
        pytest.param(AirflowSensorTimeout("no data"), 2, True, id="as a sensor"),
        pytest.param(
            RayBatchFailException("no time", FailureClass.TIMEOUT), 2, True, id="for good, whatever the class"
        ),
        pytest.param(ValueError("no data"), 3, True, id="in the last attempt"),
        pytest.param(SystemExit(1), 3, True, id="ended in the last attempt"),
        pytest.param(ValueError("no data"), 2, False, id="a retry follows"),
        pytest.param(KeyError("no data"), 2, True, id="a policy says so"),
        pytest.param(["/in"], 2, True, id="returns no dictionary"),
        pytest.param({"modell": "m"}, 2, True, id="returns an unknown argument"),
    ],
)
def test_a_function_that_fails_for_good_leaves_no_job(
    ray: FakeRay, run: Run, error: Any, attempt: int, stopped: bool
) -> None:
    """The job of the attempt before would otherwise hold its GPUs until its lease ends."""
    ray.script = lasting(600)
    answers: list[Any] = [error, {"source": "/in", "destination": "s3://lake/out"}]

    def decide() -> Any:
        answer = answers.pop()
        if isinstance(answer, BaseException):
            raise answer
        return answer

    policy = ExceptionRetryPolicy(rules=[RetryRule(KeyError, action=RetryAction.FAIL)])
    operator = made_of(decide, prompt="{row.x}", model="m", deferrable=True, retry_policy=policy)
    with pytest.raises(TaskDeferred):
        operator.execute(run.context())
    run.try_number = attempt
    with pytest.raises(type(error) if isinstance(error, BaseException) else RayBatchFailException):
        operator.execute(run.context())
    assert (not ray.active) is stopped


@pytest.mark.parametrize("decorated", [True, False])
@pytest.mark.parametrize("template", ["{{ nothing.there }}", "{{ gone() }}"])
def test_a_template_that_fails_for_good_leaves_no_job(
    ray: FakeRay, run: Run, template: str, decorated: bool
) -> None:
    """Airflow renders before the attempt begins, also when the task comes back from the triggerer."""
    ray.script = lasting(600)
    defer(run)
    run.try_number = run.max_tries + 1
    sampling = {"stop": ["x", template]}

    def decide() -> dict[str, Any]:
        return {}

    operator = made_of(decide, sampling=sampling) if decorated else batch(sampling=sampling)
    with pytest.raises((RayBatchFailException, ZeroDivisionError)):
        operator.render_template_fields({**run.context(), "gone": lambda: 1 / 0})
    assert not ray.active


def test_returned_objects_join_those_of_the_decorator(ray: FakeRay, run: Run) -> None:
    def decide() -> dict[str, Any]:
        limits = {"max_tokens_total": 5, "max_restarts": 1}
        return {"source": "/in", "destination": "s3://lake/out", "limits": limits}

    operator = made_of(decide, prompt="{row.x}", model="m", limits=Limits(max_gpu_hours=8, max_restarts=9))
    operator.execute(run.context())
    spec = spec_of_job(ray)
    assert (spec["max_gpu_hours"], spec["max_tokens_total"], spec["max_restarts"]) == (8, 5, 1)


def test_a_long_object_does_not_hide_what_a_lease_needs() -> None:
    kept: dict[str, Any] = {}
    store = SimpleNamespace(set=lambda key, value, retention: kept.update(value))
    returned = {"advanced": {"chat_template": "x" * 5000}, "limits": {"orphan_timeout": timedelta(minutes=1)}}
    keep(store, returned)  # type: ignore[arg-type]
    assert len(kept["advanced"]["chat_template"]) == 4096
    assert kept["limits"] == {"orphan_timeout": 60.0}


@pytest.mark.parametrize("given_up", [False, True])
def test_a_kill_while_the_function_runs_leaves_no_job(ray: FakeRay, run: Run, given_up: bool) -> None:
    """Airflow's supervisor sends SIGKILL five seconds later, before the attempt has found the job."""
    ray.script = lasting(600)
    defer(run)
    run.try_number = 2

    def decide() -> Any:
        if given_up:
            run.store.values.clear()
        operator.on_kill()
        raise Died

    operator = made_of(decide)
    with pytest.raises(Died):
        operator.execute(run.context())
    assert bool(ray.active) is given_up


@pytest.mark.parametrize("failed", [False, True], ids=["event", "trigger failed"])
def test_what_it_returned_outlives_a_deferral(ray: FakeRay, run: Run, failed: bool) -> None:
    ray.script = lasting(600)

    def decide() -> Any:
        return {
            "source": Path("/in"),
            "destination": "s3://lake/out",
            "sampling": {"stop": ["x"], "n": 1},
            "prompt": "Say {row.x}",
            "limits": {"orphan_timeout": timedelta(minutes=1)},
            "runtime_env": {"env_vars": {"API_TOKEN": "xyzzy", "LEVEL": "high"}},
        }

    def made() -> Any:
        return made_of(decide, model="m", deferrable=True)

    with pytest.raises(TaskDeferred) as deferred:
        made().execute(run.context())
    resumed = made()
    (job,) = ray.jobs.values()
    ray.packages.pop(order_package(ray.key(job.body)), None)
    unreachable = Outcome("unreachable", FailureClass.CLUSTER_UNREACHABLE, "The cluster gave no answer.")
    event = {"outcome": unreachable.to_json(), "handle": deferred.value.trigger.handle}
    ends = ("__fail__", {"error": "gone"}) if failed else ("execute_complete", {"event": event})
    with pytest.raises(RayBatchException, match="a retry follows it"):
        resumed.resume_execution(*ends, run.context())
    order = ray.order(job.body)
    assert order is not None
    assert order.orphan_timeout == 60

    shown = _serialize_rendered_fields(resumed)
    assert (shown["source"], shown["destination"]) == ("/in", "s3://lake/out")
    assert shown["sampling"] == {"stop": ["x"], "n": 1}
    assert shown["prompt"] == "Say {row.x}"
    assert shown["runtime_env"] == {"env_vars": {"API_TOKEN": "***", "LEVEL": "high"}}
    assert "xyzzy" not in json.dumps(run.store.values)


def test_what_it_did_not_return_stays_as_the_dag_says(ray: FakeRay, run: Run) -> None:
    """Users write the store by REST."""
    ray.script = lasting(600)
    run.store.values["raybatch_returned"] = {"limit": 3, "ray_conn_id": "another", "no_such_argument": 1}

    def decide() -> dict[str, Any]:
        return {}

    operator = made_of(decide, model="m")
    with pytest.raises(RayBatchException):
        operator.resume_execution("__fail__", {"error": "gone"}, run.context())
    assert (operator.limit, operator.ray_conn_id) == (3, "ray_default")
    assert not hasattr(operator, "no_such_argument")


def test_the_function_decides(ray: FakeRay, run: Run) -> None:
    def decide(ds: str) -> dict[str, Any]:
        return {"source": f"/in/{ds}", "prompt": "{{ not rendered }} {row.x}", "sampling": {"n": 2}}

    operator = made_of(decide, model="m", destination="/out", sampling={"n": 5})
    operator.execute({**run.context(), "ds": "2026-01-01"})
    spec = spec_of_job(ray)
    assert spec["source"] == ["/in/2026-01-01"]
    assert (spec["prompt"], spec["sampling"]) == ("{{ not rendered }} {row.x}", {"n": 2})
    assert operator.multiple_outputs is False


@pytest.mark.parametrize(
    ("returned", "sentence"),
    [
        ({"source": "/in"}, "^destination: a value is needed here"),
        (["/in"], r"^decide: it returned \['/in'\]; a @task.ray_batch function returns a dictionary"),
        ({"sorce": "/in"}, "sorce: it is not an argument; did you mean 'source'?"),
        ({"deferrable": True}, "deferrable: it is not an argument"),
    ],
)
def test_what_it_must_return(ray: FakeRay, run: Run, returned: Any, sentence: str) -> None:
    def decide() -> Any:
        return returned

    with pytest.raises(RayBatchFailException, match=sentence):
        made_of(decide, model="m", prompt="p").execute(run.context())
    assert not ray.jobs


def test_a_function_may_return_steps(ray: FakeRay, run: Run) -> None:
    def ask() -> dict[str, Any]:
        steps = [Step("draft", prompt="Say {row.x}"), {"name": "judge", "prompt": "{row.draft_response}?"}]
        return {"source": "/in", "model": "m", "destination": "/out", "steps": steps}

    made_of(ask).execute(run.context())
    assert [step["name"] for step in spec_of_job(ray)["steps"]] == ["draft", "judge"]
