# SPDX-License-Identifier: Apache-2.0
"""One submission, whatever dies: attempts of one task with a fake Jobs API, without a scheduler."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from airflow.sdk import Asset
from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_raybatch.contract.failures import FailureClass
from airflow_provider_raybatch.contract.submission import FollowerCommand, order_package
from airflow_provider_raybatch.exceptions import (
    RayBatchException,
    RayBatchFailException,
    RayBatchUnavailableException,
)
from airflow_provider_raybatch.operators.ray_batch import RayBatchInferenceOperator
from airflow_provider_raybatch.operators.ray_job import RayJobOperator
from airflow_provider_raybatch.triggers.ray_job import RayJobTrigger
from tests.support.airflow_tasks import Run, connection
from tests.support.batches import batch, defer, die_before, failing, job_ids, left, spec_of_job
from tests.support.fake_ray import FakeRay, Script, committing, lasting


def test_a_retry_adopts_the_running_job(ray: FakeRay, run: Run) -> None:
    ray.script = lasting(600)
    die_before("_follow", run)
    first = job_ids(ray)
    ray.at_poll(2, ray.end_jobs)
    result = batch().execute(run.context())
    assert job_ids(ray) == first == [result["submission_id"]]


@pytest.mark.parametrize("deferrable", [False, True])
@pytest.mark.parametrize("status", ["SUCCEEDED", "STOPPED", "FAILED"])
def test_retry_returns_what_an_ended_job_had_published(
    ray: FakeRay, run: Run, status: str, deferrable: bool
) -> None:
    ray.script = lambda ray, body: Script(lines=committing(ray, body).last, status=status)
    die_before("_follow", run)
    run.try_number += 1
    assert batch(deferrable=deferrable).execute(run.context())["rows"] == 2
    assert len(ray.jobs) == 1


@pytest.mark.parametrize("outage", ["nothing", "ray forgets", "ray is away"])
def test_a_retry_after_success_returns_the_same(ray: FakeRay, run: Run, outage: str) -> None:
    outlet = Asset("s3://lake/out/")
    first = batch(outlets=[outlet]).execute(run.context())
    run.try_number += 1  # as after a failure in post_execute or in the XCom backend
    run.outlet_events.clear()
    ray.requests.clear()
    if outage == "ray forgets":
        ray.restart()
    ray.down = outage == "ray is away"
    assert batch(outlets=[outlet]).execute(run.context()) == first
    assert run.outlet_events[outlet].extra["manifest_uri"] == first["manifest_uri"]
    assert run.xcoms["_link_RayDashboardLink"] == first["dashboard_url"]
    assert not ray.requests


def test_a_retry_after_success_with_other_arguments_runs_them(ray: FakeRay, run: Run) -> None:
    first = batch().execute(run.context())
    run.try_number += 1
    second = batch(prompt="Sing {row.x}").execute(run.context())
    assert [first["submission_id"][-2:], second["submission_id"][-2:]] == ["-0", "-1"]


@pytest.mark.parametrize("arguments", [{}, {"entrypoint": " "}])
def test_retry_of_a_task_that_only_submits_keeps_its_job(
    ray: FakeRay, run: Run, arguments: dict[str, Any]
) -> None:
    ray.script = lambda ray, body: Script(seconds=600)
    first, second = (
        left(RayJobOperator(task_id="t", wait_for_completion=False, entrypoint="sleep 60"), **changed)
        for changed in ({}, arguments)
    )
    submitted = first.execute(run.context())
    run.try_number += 1
    if arguments:
        with pytest.raises(RayBatchFailException, match="entrypoint"):
            second.execute(run.context())
    else:
        assert second.execute(run.context()) == submitted
    assert ray.active == [submitted["submission_id"]]


def test_a_proxy_without_its_backend_ends_no_retry(
    ray: FakeRay, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray.script = lasting(600)
    defer(run)
    with monkeypatch.context() as patched:
        patched.setattr(ray, "answer", lambda *asked: (404, "default backend"))
        for another in (run, Run(task_id="another")):
            with pytest.raises(RayBatchUnavailableException, match="correct the url"):
                batch().execute(another.context())
    assert len(ray.active) == 1


def test_a_retry_after_a_failure_goes_on_in_the_same_run(ray: FakeRay, run: Run) -> None:
    ray.script = failing(FailureClass.ENGINE_DEAD)
    with pytest.raises(RayBatchException):
        batch().execute(run.context())
    ray.script = committing
    batch().execute(run.context())
    first, second = ray.jobs.values()
    specs = [ray.spec(job.body) for job in (first, second)]
    assert [job.body["submission_id"][-2:] for job in (first, second)] == ["-0", "-1"]
    assert specs[0]["submission"]["run_token"] == specs[1]["submission"]["run_token"]


@pytest.mark.parametrize("store_is_kept", [True, False])  # Airflow 3.4 drops it on a clear
def test_a_clear_starts_anew_and_stops_what_is_left(ray: FakeRay, run: Run, store_is_kept: bool) -> None:
    ray.script = lasting(600)
    defer(run)
    (old,) = ray.jobs
    run.clear()
    if not store_is_kept:
        run.store.values.clear()
    ray.requests.clear()
    ray.script = committing
    result = batch().execute(run.context())
    assert result["submission_id"] != old
    assert ray.jobs[old].status == "STOPPED"
    assert (("GET", "/api/jobs/") in ray.requests) is not store_is_kept


def test_attempt_frozen_during_a_clear_submits_nothing(
    ray: FakeRay, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    frozen, plan = batch(), RayBatchInferenceOperator.plan
    context = run.context()
    new: list[str] = []

    def freezing(operator: RayBatchInferenceOperator, task_run: Any) -> Any:
        planned = plan(operator, task_run)
        if operator is frozen:
            run.clear()
            new.append(batch().execute(run.context())["submission_id"])
        return planned

    monkeypatch.setattr(RayBatchInferenceOperator, "plan", freezing)
    with pytest.raises(RayBatchException, match="Airflow has given this attempt up"):
        frozen.execute(context)
    assert job_ids(ray) == new


def test_what_a_clear_could_not_stop_the_next_attempt_stops(ray: FakeRay, run: Run) -> None:
    ray.script = lasting(600)
    defer(run)
    (old,) = ray.jobs
    run.clear()
    die_before("_submit", run)
    run.clear()
    ray.script = committing
    batch().execute(run.context())
    assert ray.jobs[old].status == "STOPPED"
    assert run.store.values["raybatch_run"]["earlier"] == []


def test_unstopped_job_is_stopped_by_the_next_attempt(
    ray: FakeRay, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray.script = lasting(600)
    defer(run)
    (old,) = ray.jobs
    run.clear()
    answer = ray.answer

    def refuses(method: str, path: str, *rest: Any) -> Any:
        return (403, "Forbidden") if path.endswith("/stop") else answer(method, path, *rest)

    with monkeypatch.context() as patched:
        patched.setattr(ray, "answer", refuses)
        defer(run)  # it continues with its own job
    assert len(ray.active) == 2
    run.try_number += 1
    defer(run)
    assert len(ray.jobs) == 2
    assert old not in ray.active
    assert len(ray.active) == 1


def test_nothing_is_submitted_without_the_store(ray: FakeRay, run: Run) -> None:
    run.store.broken = True
    with pytest.raises(RayBatchUnavailableException, match="task_state_store") as caught:
        batch().execute(run.context())
    assert not isinstance(caught.value, AirflowFailException)
    assert not ray.jobs


def test_a_store_that_goes_away_at_the_end_spoils_nothing(
    ray: FakeRay, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    hand_over = RayBatchInferenceOperator.hand_over

    def then_break(self: Any, *args: Any) -> Any:
        run.store.broken = True
        return hand_over(self, *args)

    monkeypatch.setattr(RayBatchInferenceOperator, "hand_over", then_break)
    assert batch().execute(run.context())["rows"] == 2


def test_mapped_siblings_have_jobs_of_their_own(ray: FakeRay) -> None:
    for index in range(3):
        batch().execute(Run(map_index=index).context())
    assert len({job.body["metadata"]["raybatch.task_key"] for job in ray.jobs.values()}) == 3


def test_namespaces_keep_two_airflows_apart(ray: FakeRay, monkeypatch: pytest.MonkeyPatch) -> None:
    ray.script = lasting(600)
    for name in ("staging", "production"):
        monkeypatch.setenv("AIRFLOW_VAR_RAYBATCH_INSTALLATION_ID", name)
        run = Run()
        defer(run)
        run.clear()
        defer(run)
    namespaces = [ray.jobs[name].body["metadata"]["raybatch.namespace"] for name in ray.active]
    assert namespaces == ["staging", "production"]


def test_the_connections_namespace_wins(ray: FakeRay, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    batch().execute(run.context())
    text = connection(ray.url, extra=json.dumps({"namespace": "copy"}))
    monkeypatch.setenv("AIRFLOW_CONN_RAY_DEFAULT", text)
    run.clear()
    batch().execute(run.context())
    namespaces = [job.body["metadata"]["raybatch.namespace"] for job in ray.jobs.values()]
    assert namespaces == ["this-airflow", "copy"]


@pytest.mark.parametrize(("choice", "stopped"), [("replace", True), ("adopt", False)])
def test_changed_arguments(ray: FakeRay, run: Run, choice: Any, stopped: bool) -> None:
    ray.script = lasting(600)
    defer(run)
    (old,) = ray.jobs
    defer(run, prompt="Sing {row.x}", on_stale_state=choice)
    assert (ray.jobs[old].status == "STOPPED") is stopped
    assert len(ray.active) == 1


def test_changed_arguments_can_be_refused(ray: FakeRay, run: Run) -> None:
    ray.script = lasting(600)
    defer(run)
    with pytest.raises(RayBatchFailException, match=r"on_stale_state: .*with other arguments"):
        batch(prompt="Sing {row.x}", on_stale_state="fail").execute(run.context())
    assert len(ray.active) == 1


class TestAdoption:
    def adopt(self, ray: FakeRay, run: Run, **arguments: Any) -> FollowerCommand:
        """Return the order that the next attempt gives to the job of the first one."""
        run.try_number += 1
        trigger = RayJobTrigger(**defer(run, **arguments).trigger.serialize()[1])
        (job,) = ray.jobs.values()

        async def first_poll() -> None:
            following = asyncio.create_task(anext(trigger.run()))
            # The server's thread sets no event of this loop.
            while (order := ray.order(job.body)) is None or order.attempt < run.try_number:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
            following.cancel()

        asyncio.run(asyncio.wait_for(first_poll(), 20))
        order = ray.order(job.body)
        assert order is not None
        assert order.attempt == run.try_number
        return order

    def test_brings_the_job_the_bounds_of_the_new_attempt(self, ray: FakeRay, run: Run) -> None:
        ray.script = lasting(600)
        defer(run, timeout=100, orphan_timeout=1000)
        first = spec_of_job(ray)
        later = self.adopt(ray, run, timeout=200, orphan_timeout=2000)
        assert later.deadline == pytest.approx(first["deadline"] + 100, abs=60)
        assert (first["orphan_timeout"], later.orphan_timeout) == (1000, 2000)
        assert self.adopt(ray, run, deadline="2999-01-01T00:00:00+00:00").deadline == 32472144000
        assert self.adopt(ray, run).deadline is None


@pytest.mark.parametrize("deferrable", [False, True])
def test_followed_job_costs_two_requests_a_poll(ray: FakeRay, run: Run, deferrable: bool) -> None:
    """At most: a log that does not grow is read less often. Two more come ten times in a lease."""
    ray.script = lasting(600)
    ray.at_poll(8, ray.end_jobs)
    if deferrable:
        trigger = RayJobTrigger(**defer(run).trigger.serialize()[1])
        ray.requests.clear()

        async def follow() -> None:
            await anext(trigger.run())

        asyncio.run(follow())
    else:
        batch().execute(run.context())
    asked = [path.split("/")[2] for _, path in ray.requests]
    (job,) = ray.jobs.values()
    control = [path for _, path in ray.requests if path.endswith(order_package(ray.key(job.body)))]
    polls = sum(path == f"/api/jobs/{job.body['submission_id']}" for _, path in ray.requests)
    assert polls > 5
    assert 1 <= sum(path == "/api/v0/logs/file" for _, path in ray.requests) <= polls + 1
    assert asked.count("jobs") <= polls + 6
    assert len(control) == 2


def test_lease_shorter_than_the_poll_interval_is_refused(ray: FakeRay, run: Run) -> None:
    with pytest.raises(
        RayBatchFailException, match="orphan_timeout: 20 s is less than 3 times the poll_interval"
    ):
        left(batch(poll_interval=10), orphan_timeout=20).execute(run.context())
    assert not ray.jobs


@pytest.mark.parametrize(
    ("arguments", "cleared"), [({"limit": 0}, False), ({"deadline": "tomorrow"}, False), ({"limit": 0}, True)]
)
def test_retry_that_cannot_submit_leaves_no_orphan(
    ray: FakeRay, run: Run, arguments: dict[str, Any], cleared: bool
) -> None:
    """A retry, or a task that is cleared to run with other arguments, which are wrong."""
    ray.script = lasting(600)
    defer(run)
    if cleared:
        run.clear()
    else:
        run.try_number = 2
    with pytest.raises(RayBatchFailException, match=next(iter(arguments))):
        left(batch(), **arguments).execute(run.context())
    assert not ray.active


def test_another_runtime_env_makes_another_job(ray: FakeRay, run: Run) -> None:
    ray.script = lasting(600)
    for value in "112":
        defer(run, runtime_env={"env_vars": {"A": value}})
    assert len(ray.jobs) == 2
    assert len(ray.active) == 1
