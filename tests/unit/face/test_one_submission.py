# SPDX-License-Identifier: Apache-2.0
"""One submission whatever dies: attempts of one task against a fake Jobs API, without a scheduler."""

from __future__ import annotations

import json
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException, TaskDeferred

from airflow_provider_raybatch.contract.failures import FailureClass
from airflow_provider_raybatch.exceptions import (
    RayBatchException,
    RayBatchFailException,
    RayBatchUnavailableException,
)
from airflow_provider_raybatch.operators.ray_batch import RayBatchInferenceOperator

from .batches import Died, batch, die, failing, job_ids
from .conftest import Run, connection
from .fake_ray import FakeRay, committing, lasting


def test_a_retry_adopts_the_running_job(ray: FakeRay, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    ray.script = lasting(1.0)
    operator = batch()
    with monkeypatch.context() as patched:
        patched.setattr(type(operator), "_follow", die)
        with pytest.raises(Died):
            operator.execute(run.context())
    first = job_ids(ray)
    result = batch().execute(run.context())
    assert job_ids(ray) == first == [result["submission_id"]]


def test_a_retry_returns_what_a_finished_job_left(
    ray: FakeRay, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    operator = batch()
    with monkeypatch.context() as patched:
        patched.setattr(type(operator), "_end", die)
        with pytest.raises(Died):
            operator.execute(run.context())
    for deferrable in (False, True):
        result = batch(deferrable=deferrable).execute(run.context())
        assert result["rows"] == 2
        run.store.values["raybatch_run"]["succeeded"] = False
    assert len(ray.jobs) == 1


def test_a_proxy_without_its_backend_ends_no_retry(
    ray: FakeRay, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray.script = lasting(60)
    with pytest.raises(TaskDeferred):
        batch(deferrable=True).execute(run.context())
    with monkeypatch.context() as patched:
        patched.setattr(ray, "answer", lambda *asked: (404, "default backend"))
        with pytest.raises(RayBatchUnavailableException):
            batch().execute(run.context())
        with pytest.raises(RayBatchFailException, match="correct the url"):
            batch().execute(Run(task_id="another").context())
    assert len(ray.active) == 1


def test_a_lost_answer_doesnt_make_a_second_job(ray: FakeRay, run: Run) -> None:
    ray.drop_next_answer_to_post = True
    batch().execute(run.context())
    assert len(ray.jobs) == 1
    assert ray.requests.count(("POST", "/api/jobs/")) == 1


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


def test_a_clear_starts_anew_and_stops_what_is_left(ray: FakeRay, run: Run) -> None:
    ray.script = lasting(60)
    with pytest.raises(TaskDeferred):
        batch(deferrable=True).execute(run.context())
    (old,) = ray.jobs
    run.max_tries += 1
    ray.script = committing
    result = batch().execute(run.context())
    assert result["submission_id"] != old
    assert ray.jobs[old].status == "STOPPED"


def test_a_cleared_success_runs_again(ray: FakeRay, run: Run) -> None:
    first = batch().execute(run.context())
    second = batch().execute(run.context())  # max_tries as it was
    assert first["submission_id"] != second["submission_id"]
    assert len(ray.jobs) == 2


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
    for name in ("a", "b"):
        text = connection(ray.url, extra=json.dumps({"namespace": name}))
        monkeypatch.setenv("AIRFLOW_CONN_RAY_DEFAULT", text)
        batch().execute(Run().context())
    keys = {job.body["metadata"]["raybatch.task_key"] for job in ray.jobs.values()}
    assert len(keys) == 2


@pytest.mark.parametrize(("choice", "stopped"), [("replace", True), ("adopt", False)])
def test_changed_arguments(ray: FakeRay, run: Run, choice: Any, stopped: bool) -> None:
    ray.script = lasting(60)
    with pytest.raises(TaskDeferred):
        batch(deferrable=True).execute(run.context())
    (old,) = ray.jobs
    with pytest.raises(TaskDeferred):
        batch(deferrable=True, prompt="Sing {row.x}", on_stale_state=choice).execute(run.context())
    assert (ray.jobs[old].status == "STOPPED") is stopped
    assert len(ray.active) == 1


def test_changed_arguments_can_be_refused(ray: FakeRay, run: Run) -> None:
    ray.script = lasting(60)
    with pytest.raises(TaskDeferred):
        batch(deferrable=True).execute(run.context())
    with pytest.raises(RayBatchFailException, match=r"on_stale_state: .*with other arguments"):
        batch(prompt="Sing {row.x}", on_stale_state="fail").execute(run.context())
    assert len(ray.active) == 1


def test_other_limits_are_no_other_job(ray: FakeRay, run: Run) -> None:
    ray.script = lasting(60)
    for timeout in (100, 200):
        with pytest.raises(TaskDeferred):
            batch(deferrable=True, timeout=timeout).execute(run.context())
    assert len(ray.jobs) == 1


@pytest.mark.parametrize("arguments", [{"limit": 0}, {"deadline": "tomorrow"}])
def test_a_retry_that_can_submit_nothing_leaves_no_job_to_nobody(
    ray: FakeRay, run: Run, arguments: dict[str, Any]
) -> None:
    ray.script = lasting(60)
    with pytest.raises(TaskDeferred):
        batch(deferrable=True).execute(run.context())
    run.try_number = 2
    with pytest.raises(RayBatchFailException, match=next(iter(arguments))):
        batch(**arguments).execute(run.context())
    assert not ray.active


def test_another_runtime_env_makes_another_job(ray: FakeRay, run: Run) -> None:
    ray.script = lasting(60)
    for value in "112":
        with pytest.raises(TaskDeferred):
            batch(deferrable=True, runtime_env={"env_vars": {"A": value}}).execute(run.context())
    assert len(ray.jobs) == 2
    assert len(ray.active) == 1
