# SPDX-License-Identifier: Apache-2.0
"""A task that resumes asks the job first, whatever Airflow or the trigger reports."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException, AirflowSensorTimeout, TaskDeferred

from airflow_provider_raybatch.contract.failures import FailureClass
from airflow_provider_raybatch.exceptions import RayBatchException
from airflow_provider_raybatch.operators.ray_job import RayJobOperator
from airflow_provider_raybatch.sensors.ray_job import RayJobSensor
from tests.support.airflow_tasks import Clock, Run
from tests.support.batches import batch, defer, failing
from tests.support.fake_ray import FakeRay, lasting

TIMEOUT = "Trigger timeout"
FAILURE = "Trigger failure"


def deferred_job(ray: FakeRay, run: Run, operator: Any = None, **arguments: Any) -> Any:
    """Defer a task on its job, and return the job."""
    ray.script = lasting(600)
    with pytest.raises(TaskDeferred):
        (operator or batch)(deferrable=True, **arguments).execute(run.context())
    (job,) = ray.jobs.values()
    return job


def end(job: Any) -> None:
    job.script.seconds = 0


def event(state: str, failure_class: FailureClass, job: Any, run: Run) -> dict[str, Any]:
    """Return the event of a trigger that did not see the job's end."""
    handle = {
        "submission_id": job.body["submission_id"], "dashboard_url": None,
        "run_token": job.body["metadata"]["raybatch.run_token"],
        "fingerprint": job.body["metadata"]["raybatch.fingerprint"],
    }  # fmt: skip
    outcome = {"state": state, "failure_class": failure_class.value, "message": "It was so."}
    return {"event": {"outcome": outcome, "handle": handle}}


def resume(run: Run, error: str, **arguments: Any) -> Any:
    return batch(**arguments).resume_execution("__fail__", {"error": error}, run.context())


@pytest.mark.parametrize("error", [TIMEOUT, FAILURE])
def test_a_finished_dataset_is_returned(ray: FakeRay, run: Run, error: str) -> None:
    end(deferred_job(ray, run, timeout=3600))
    result = resume(run, error, timeout=3600)
    assert (result["rows"], result["submission_id"]) == (2, *ray.jobs)
    # The result is recorded: a retry for another reason returns the same.
    run.try_number = 2
    assert batch(timeout=3600).execute(run.context()) == result
    assert len(ray.jobs) == 1


@pytest.mark.parametrize("error", [TIMEOUT, FAILURE])
def test_finished_dataset_is_returned_past_the_deadline(
    ray: FakeRay, run: Run, clock: Clock, error: str
) -> None:
    deadline = datetime.now(UTC) + timedelta(hours=1)
    end(deferred_job(ray, run, deadline=deadline))
    clock.forward(3600)
    assert resume(run, error, deadline=deadline)["rows"] == 2


@pytest.mark.parametrize(
    ("state", "failure_class"),
    [
        ("timeout", FailureClass.TIMEOUT),
        ("unreachable", FailureClass.CLUSTER_UNREACHABLE),
        ("failed", FailureClass.USER_ERROR),  # the triggerer's own token was refused
    ],
)
def test_finished_dataset_is_returned_for_any_trigger_event(
    ray: FakeRay, run: Run, state: str, failure_class: FailureClass
) -> None:
    job = deferred_job(ray, run)
    end(job)
    result = batch().resume_execution(
        "execute_complete", event(state, failure_class, job, run), run.context()
    )
    assert result["rows"] == 2


@pytest.mark.parametrize("error", [TIMEOUT, FAILURE])
def test_failed_job_is_reported_with_its_reason(ray: FakeRay, run: Run, error: str) -> None:
    job = deferred_job(ray, run)
    job.script = failing(FailureClass.USER_ERROR, "No column 'x'.")(ray, job.body)
    with pytest.raises(AirflowFailException, match="failed: No column 'x'"):
        resume(run, error)


def test_a_job_that_runs_past_its_deadline_is_stopped(ray: FakeRay, run: Run) -> None:
    deferred_job(ray, run)
    with pytest.raises(RayBatchException, match="timeout: the trigger did not end the job") as caught:
        resume(run, TIMEOUT)
    assert caught.value.failure_class is FailureClass.TIMEOUT
    assert not isinstance(caught.value, AirflowFailException)
    assert not ray.active


def test_a_stop_that_failed_is_made_up_for(ray: FakeRay, run: Run) -> None:
    job = deferred_job(ray, run)
    timeout = event("timeout", FailureClass.TIMEOUT, job, run)
    with pytest.raises(RayBatchException, match=r"It was so\. It was stopped"):
        batch().resume_execution("execute_complete", timeout, run.context())
    assert not ray.active


@pytest.mark.parametrize("how", [FAILURE, "unreachable", "failed"])
def test_a_healthy_job_is_left_to_the_retry(ray: FakeRay, run: Run, how: str) -> None:
    job = deferred_job(ray, run)
    resumed: tuple[str, dict[str, Any]] = ("__fail__", {"error": FAILURE})
    if how != FAILURE:
        resumed = ("execute_complete", event(how, FailureClass.USER_ERROR, job, run))
    with pytest.raises(RayBatchException, match="The job still runs; a retry follows it") as caught:
        batch().resume_execution(*resumed, run.context())
    assert not isinstance(caught.value, AirflowFailException)
    assert ray.active
    run.try_number = 2
    end(job)
    assert batch().execute(run.context())["rows"] == 2
    assert len(ray.jobs) == 1


def test_the_event_of_an_earlier_run_ends_no_later_one(ray: FakeRay, run: Run) -> None:
    """SQLite reuses the number of a deleted trigger, so Airflow may resume the task with its event."""
    old = deferred_job(ray, run)
    run.clear()
    defer(run)
    old_event = event("stopped", FailureClass.CANCELLED, old, run)["event"]
    with pytest.raises(TaskDeferred) as deferred:
        batch(deferrable=True).execute_complete(run.context(), old_event)
    (_, new) = ray.jobs
    assert new in str(deferred.value.trigger.serialize())
    assert len(ray.jobs) == 2


def test_a_healthy_job_is_followed_here_when_no_retry_is_left(ray: FakeRay, run: Run) -> None:
    deferred_job(ray, run)
    run.try_number, run.max_tries = 1, 0
    ray.at_poll(3, ray.end_jobs)
    assert resume(run, FAILURE)["rows"] == 2
    assert len(ray.jobs) == 1


def test_unknown_job_keeps_the_outcome_of_the_trigger(ray: FakeRay, run: Run) -> None:
    deferred_job(ray, run)
    ray.restart()
    with pytest.raises(RayBatchException, match="The trigger that followed the job failed"):
        resume(run, FAILURE)


def test_any_other_job_is_asked_first_too(ray: FakeRay, run: Run) -> None:
    def raw(**arguments: Any) -> RayJobOperator:
        return RayJobOperator(task_id="t", entrypoint="sleep 1", poll_interval=0.05, **arguments)

    end(deferred_job(ray, run, raw))
    result = raw().resume_execution("__fail__", {"error": TIMEOUT}, run.context())
    assert result["status"] == "SUCCEEDED"


@pytest.mark.parametrize("error", [TIMEOUT, FAILURE])
def test_a_sensor_whose_job_has_ended_succeeds(ray: FakeRay, run: Run, error: str) -> None:
    job = deferred_job(ray, run)
    waiting = RayJobSensor(task_id="s", submission_id=job.body["submission_id"])
    with pytest.raises((AirflowSensorTimeout, Exception), match="Trigger"):
        waiting.resume_execution("__fail__", {"error": error}, run.context())
    assert ray.active
    end(job)
    assert waiting.resume_execution("__fail__", {"error": error}, run.context())["status"] == "SUCCEEDED"
