# SPDX-License-Identifier: Apache-2.0
"""The job carries its deadline, which holds without triggers, workers and clusters."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_raybatch.contract.failures import FailureClass
from airflow_provider_raybatch.exceptions import RayBatchException, RayBatchFailException
from airflow_provider_raybatch.operators.ray_job import RayJobOperator
from tests.support.airflow_tasks import Clock, Run
from tests.support.approved import AssertSentences
from tests.support.batches import batch, defer, die_before, failing, left, spec_of_job
from tests.support.fake_ray import FakeRay, lasting

MOMENT = "2100-01-31T06:00:00+00:00"
LATE = "the job's deadline passed; 5 of 9 rows are kept."


@pytest.mark.parametrize(("timeout", "hours", "counts"), [(60, 1, 60), (7200, 1, 3600), (None, 1, 3600)])
def test_is_the_earlier_of_two(
    ray: FakeRay, run: Run, timeout: float | None, hours: int, counts: float
) -> None:
    batch(timeout=timeout, deadline=datetime.now(UTC) + timedelta(hours=hours)).execute(run.context())
    assert abs(spec_of_job(ray)["deadline"] - time.time() - counts) < 30


def test_may_be_a_text(ray: FakeRay, run: Run) -> None:
    operator = batch(deadline="{{ ds }}T06:00:00+02:00")
    operator.render_template_fields({"ds": "2100-01-31"})  # type: ignore[typeddict-item]
    operator.execute(run.context())
    assert spec_of_job(ray)["deadline"] == datetime(2100, 1, 31, 4, tzinfo=UTC).timestamp()


def test_deadline_that_cant_be_kept_is_refused(
    ray: FakeRay, run: Run, assert_sentences: AssertSentences
) -> None:
    assert_sentences(
        lambda deadline: left(batch(), deadline=deadline).execute(run.context()), RayBatchFailException
    )
    assert not ray.jobs


def test_deadline_in_the_past_holds_back_no_result(ray: FakeRay, run: Run, clock: Clock) -> None:
    deadline = datetime.now(UTC) + timedelta(hours=1)
    die_before("_end", run, deadline=deadline)
    clock.forward(3600)
    assert left(batch(), deadline=deadline).execute(run.context())["rows"] == 2


@pytest.mark.parametrize(("arguments", "final"), [({"deadline": True}, True), ({"timeout": 3600}, False)])
def test_of_the_run_leaves_no_retry(
    ray: FakeRay, run: Run, clock: Clock, arguments: dict[str, Any], final: bool
) -> None:
    ray.script = lasting(7200)
    ray.at_poll(2, lambda: clock.forward(3600))
    if "deadline" in arguments:
        arguments = {"deadline": datetime.now(UTC) + timedelta(hours=1)}
    operator = RayJobOperator(task_id="t", entrypoint="sleep 60", poll_interval=0.05, **arguments)
    with pytest.raises(
        RayBatchException, match=r"still RUNNING at its deadline\..* The limit was "
    ) as caught:
        operator.execute(run.context())
    assert caught.value.failure_class is FailureClass.TIMEOUT
    assert isinstance(caught.value, AirflowFailException) is final
    assert not ray.active


@pytest.mark.parametrize(
    ("arguments", "ended_by"),
    [
        ({"timeout": 3600}, "timeout=3600 s: raise it, or leave it out."),
        ({"timeout": 3600, "deadline": MOMENT}, "timeout=3600 s: raise it, or leave it out."),
        ({"timeout": 3600, "execution_timeout": timedelta(seconds=60), "deferrable": True},
         "execution_timeout=60 s: raise it, or leave it out."),
        ({"timeout": 10**10, "deadline": MOMENT},
         f"deadline={MOMENT}: set a later one, or clear the task in time."),
    ],
)  # fmt: skip
def test_the_failure_names_the_argument(
    ray: FakeRay, run: Run, arguments: dict[str, Any], ended_by: str
) -> None:
    """The driver has ended itself; it knows only the moment."""
    ray.script = failing(FailureClass.TIMEOUT, LATE)
    operator = batch(**arguments)
    with pytest.raises(RayBatchException) as caught:
        operator.execute(run.context())
    assert f"{LATE} The limit was {ended_by}" in str(caught.value)


def test_ends_a_job_that_doesnt_end_itself(ray: FakeRay, run: Run, clock: Clock) -> None:
    ray.script = lasting(7200)
    ray.at_poll(2, lambda: clock.forward(3600))
    operator = RayJobOperator(task_id="t", entrypoint="sleep 60", timeout=3600, poll_interval=0.05)
    with pytest.raises(RayBatchException, match="timeout: The job was still RUNNING") as caught:
        operator.execute(run.context())
    assert caught.value.failure_class is FailureClass.TIMEOUT
    assert not ray.active


def test_is_backed_by_a_deferral_timeout(ray: FakeRay, run: Run) -> None:
    ray.script = lasting(600)
    deferred = defer(run, timeout=3600)
    trigger, net = deferred.trigger, deferred.timeout
    assert 3600 < trigger.deadline - time.time() < 3700
    assert net is not None
    assert net.total_seconds() > 3700


@pytest.mark.parametrize(("timeout", "expected"), [(None, 600), (60, 60), (3600, 600)])
def test_includes_the_execution_timeout_while_deferred(
    ray: FakeRay, run: Run, timeout: float | None, expected: float
) -> None:
    ray.script = lasting(600)
    defer(run, timeout=timeout, execution_timeout=timedelta(minutes=10))
    assert abs(spec_of_job(ray)["deadline"] - time.time() - expected) < 30


@pytest.mark.parametrize("code", [503, 404])
def test_stop_is_repeated_while_the_cluster_is_unreachable(
    ray: FakeRay, run: Run, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    from airflow_provider_raybatch.cluster.follow import loop
    from airflow_provider_raybatch.cluster.jobs_api import transport

    monkeypatch.setattr(transport.RetryPolicy, "wait", lambda policy, attempt: 0.0)
    monkeypatch.setattr(loop, "_ASK_AGAIN_SECONDS", 0.0)
    ray.script = lasting(600)
    defer(run)
    ray.stage("GET", "/api", (code, "no backend"), times=20)
    ray.stage("POST", "/api", (code, "no backend"), times=20)
    with pytest.raises(RayBatchException):
        batch().resume_execution("__fail__", {"error": "Trigger timeout"}, run.context())
    assert not ray.active


@pytest.mark.parametrize("arguments", [{"timeout": timedelta.max}, {"deadline": "9999-12-31T23:59:59+00:00"}])
def test_deadline_far_away_does_not_overflow(ray: FakeRay, run: Run, arguments: dict[str, Any]) -> None:
    ray.script = lasting(600)
    net = defer(run, **arguments).timeout
    assert net is not None
    assert datetime.now(UTC) + net


def test_of_the_run_leaves_no_retry_when_the_trigger_is_gone(ray: FakeRay, run: Run, clock: Clock) -> None:
    ray.script = lasting(7200)
    deadline = datetime.now(UTC) + timedelta(hours=1)
    defer(run, deadline=deadline)
    clock.forward(3600)
    with pytest.raises(RayBatchFailException, match="did not end the job at its deadline") as caught:
        batch(deadline=deadline).resume_execution("__fail__", {"error": "Trigger timeout"}, run.context())
    assert caught.value.failure_class is FailureClass.TIMEOUT
    assert not ray.active
