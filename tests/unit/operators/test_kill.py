# SPDX-License-Identifier: Apache-2.0
"""A blocking task that is killed stops its own job and no other one, whenever the signal comes."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowTaskTimeout
from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

from airflow_provider_raybatch.cluster.submit import resolve
from airflow_provider_raybatch.contract.failures import FailureClass
from airflow_provider_raybatch.exceptions import RayBatchException
from airflow_provider_raybatch.operators import cancel_handler
from airflow_provider_raybatch.operators.ray_job import RayJobOperator
from tests.support.airflow_tasks import Run
from tests.support.batches import Died, batch, defer
from tests.support.fake_ray import FakeRay, Script, committing, lasting


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow machine's store is not a silent one."""
    monkeypatch.setattr(cancel_handler, "_STORE_TIMEOUT", 60.0)


def polls(ray: FakeRay) -> list[tuple[str, str]]:
    return [request for request in ray.requests if request[1] == "/api/v0/logs/file"]


@contextlib.contextmanager
def killed_by_sigterm(operator: Any, when: Any, then: Callable[[], None] = lambda: None) -> Iterator[None]:
    """SIGTERM, handled as in the task runner: by the operator's `on_kill` in the main thread."""

    def on_term(number: int, frame: object) -> None:
        operator.on_kill()
        then()

    def kill() -> None:
        end = time.monotonic() + 60
        while not when() and time.monotonic() < end:
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGTERM)

    old = signal.signal(signal.SIGTERM, on_term)
    killer = threading.Thread(target=kill)
    killer.start()
    try:
        yield
    finally:
        killer.join()
        signal.signal(signal.SIGTERM, old)


def test_sigterm_stops_the_job_and_no_other(ray: FakeRay, run: Run) -> None:
    ray.script = lasting(600)
    defer(Run(task_id="another"))
    operator = batch()
    with (
        killed_by_sigterm(operator, when=lambda: len(polls(ray)) > 3),
        pytest.raises(RayBatchException, match="stopped") as caught,
    ):
        operator.execute(run.context())
    assert caught.value.failure_class is FailureClass.CANCELLED
    assert ray.active == [next(iter(ray.jobs))]


well = contextlib.nullcontext


@contextlib.contextmanager
def given_up(run: Run) -> Iterator[None]:
    """As Airflow's store is for an attempt after which the next one has begun."""
    run.store.values.clear()
    yield


@contextlib.contextmanager
def silent(run: Run) -> Iterator[None]:
    """As an API server that takes requests and never answers."""
    answers = threading.Event()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(run.store, "get", lambda *_: answers.wait(60))
        patched.setattr(cancel_handler, "_STORE_TIMEOUT", 0.0)
        yield
        answers.set()


@contextlib.contextmanager
def broken(run: Run) -> Iterator[None]:
    run.store.broken = True
    yield
    run.store.broken = False


def leases(ray: FakeRay) -> list[float]:
    """Return `orphan_timeout` as the jobs have last been told."""
    orders = [ray.order(job.body) for job in ray.jobs.values()]
    return [order.orphan_timeout for order in orders if order is not None]


def kill_while_it_follows(
    ray: FakeRay, run: Run, operator: Any, store: Callable[[Run], AbstractContextManager[None]]
) -> Any:
    """Return the result of a task whose process, and job, go on after the kill.

    :param store: how Airflow's store is during the kill.
    """
    during = contextlib.ExitStack()
    ray.script = lasting(600)

    def is_followed() -> bool:
        if len(polls(ray)) < 2:
            return False
        during.enter_context(store(run))
        return True

    def end_the_job() -> None:
        during.close()
        (job,) = ray.jobs.values()
        job.end("SUCCEEDED")

    with killed_by_sigterm(operator, when=is_followed, then=end_the_job):
        return operator.execute(run.context())


def test_a_job_that_the_next_attempt_follows_goes_on(ray: FakeRay, run: Run) -> None:
    """A killed scheduler's successor begins the next attempt before the first one is ended."""
    assert kill_while_it_follows(ray, run, batch(), given_up)["rows"] == 2
    assert leases(ray) == [6 * 3600]


@contextlib.contextmanager
def cleared(run: Run) -> Iterator[None]:
    known = dict(run.store.values)  # the next attempt's, whose id the task has already
    run.store.values.clear()
    yield
    run.store.values.update(known)


@pytest.mark.parametrize("state", ["restarting", "up_for_retry", None])
def test_a_clear_that_counts_as_a_retry_begins_a_new_run(
    ray: FakeRay, run: Run, state: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Airflow leaves `max_tries` where the executor of a cleared task reports a failure."""

    def states(**asked: Any) -> Any:
        assert asked == {"dag_id": "d", "task_ids": ["t"], "run_ids": ["r"], "map_index": -1}
        return {"r": {"t": state}}

    monkeypatch.setattr(RuntimeTaskInstance, "get_task_states", staticmethod(states))
    if state == "restarting":
        with pytest.raises(RayBatchException, match="stopped"):
            kill_while_it_follows(ray, run, batch(), cleared)
    else:
        kill_while_it_follows(ray, run, batch(), cleared)
        run.store.values["raybatch_run"].update(fingerprint=None, result=None)
    run.try_number += 1
    ray.script = committing
    batch().execute(run.context())
    assert len({job.body["metadata"][resolve.RUN_TOKEN] for job in ray.jobs.values()}) == 1 + (
        state == "restarting"
    )
    assert not ray.active


def test_a_clear_stops_the_job_where_the_cluster_takes_no_mark(
    ray: FakeRay, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A proxy before the cluster may refuse uploads, or be slower with them than the supervisor waits."""
    answer, stopped = ray.answer, threading.Event()

    def refuses(method: str, path: str, *rest: Any) -> Any:
        if path.endswith("/stop"):
            stopped.set()
        elif method == "PUT" and not run.store.values:  # the mark: no order follows the kill
            return (403, "Forbidden") if stopped.wait(30) else (500, "The mark came before the stop")
        return answer(method, path, *rest)

    states = staticmethod(lambda **_: {"r": {"t": "restarting"}})
    monkeypatch.setattr(RuntimeTaskInstance, "get_task_states", states)
    monkeypatch.setattr(ray, "answer", refuses)
    with pytest.raises(RayBatchException, match="stopped"):
        kill_while_it_follows(ray, run, batch(), cleared)
    assert not ray.active


@pytest.mark.parametrize("store", [broken, silent])
@pytest.mark.parametrize(
    ("arguments", "lease"),
    [
        pytest.param({}, 300 + 600, id="retry_delay and ten minutes"),
        pytest.param({"retry_delay": timedelta(hours=1), "orphan_timeout": 0}, 3600 + 600, id="had none"),
        pytest.param({"orphan_timeout": 60}, 60, id="is shorter already"),
        pytest.param({"retry_delay": 60, "retry_exponential_backoff": 2}, 120 + 600, id="backoff"),
    ],
)
def test_a_kill_in_doubt_shortens_the_lease(
    ray: FakeRay, run: Run, store: Callable[[Run], Any], arguments: dict[str, Any], lease: float
) -> None:
    assert kill_while_it_follows(ray, run, batch(**arguments), store)["rows"] == 2
    assert leases(ray) == [lease]


@pytest.mark.parametrize("store", [broken, silent])
def test_the_next_attempt_renews_a_shortened_lease(
    ray: FakeRay, run: Run, store: Callable[[Run], Any]
) -> None:
    """Also if the kill came before the attempt had found the job."""
    ray.script = lasting(600)
    defer(run)
    run.try_number = 2
    operator = batch()

    def killed(*_: object) -> None:
        with store(run):
            operator.on_kill()
        raise Died

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(resolve, "submit_or_adopt", killed)
        with pytest.raises(Died):
            operator.execute(run.context())
    assert leases(ray) == [300 + 600]
    assert len(ray.active) == 1

    run.try_number = 3
    (job,) = ray.jobs.values()
    ray.stage("GET", "/api/v0/logs/file", lambda answer: job.end("SUCCEEDED") or answer())
    assert batch().execute(run.context())["rows"] == 2
    assert leases(ray) == [6 * 3600]


def test_a_kill_in_doubt_leaves_a_job_without_a_lease_alone(
    ray: FakeRay, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    operator = RayJobOperator(task_id="t", entrypoint="true", poll_interval=0.05)
    kill_while_it_follows(ray, run, operator, broken)
    assert "If it is not wanted, stop it on the Ray dashboard" in capsys.readouterr().out


def submitting_slowly(ray: FakeRay) -> tuple[threading.Event, threading.Event]:
    """Two events: the submission has arrived, and Ray may make its job."""
    arrived, go_on = threading.Event(), threading.Event()

    def slow(ray: FakeRay, body: dict[str, Any]) -> Script:
        arrived.set()
        go_on.wait(60)
        return lasting(600)(ray, body)

    ray.script = slow
    return arrived, go_on


def test_sigterm_during_the_submission_stops_the_job(ray: FakeRay, run: Run) -> None:
    arrived, go_on = submitting_slowly(ray)
    operator = batch()
    with killed_by_sigterm(operator, when=arrived.is_set):
        ray.stage("POST", "/api/jobs/raybatch", lambda answer: (answer(), go_on.set())[0])  # the first stop
        with pytest.raises(RayBatchException) as caught:
            operator.execute(run.context())
    assert caught.value.failure_class is FailureClass.CANCELLED
    assert len(ray.jobs) == 1
    assert not ray.active


def test_kill_leaves_the_job_alone_if_configured(ray: FakeRay, run: Run) -> None:
    operator = batch(cancel_on_kill=False)
    assert kill_while_it_follows(ray, run, operator, well)["rows"] == 2


def test_kill_before_a_submission_stops_nothing(ray: FakeRay, run: Run) -> None:
    ray.script = lasting(600)
    defer(run)
    batch().on_kill()
    assert len(ray.active) == 1


def test_timeout_during_the_submission_leaves_no_job(ray: FakeRay, run: Run) -> None:
    arrived, go_on = submitting_slowly(ray)
    operator = batch()
    old = signal.signal(signal.SIGTERM, _run_out_of_time)
    try:
        killer = threading.Thread(target=lambda: arrived.wait(60) and os.kill(os.getpid(), signal.SIGTERM))
        killer.start()
        threading.Timer(1.0, go_on.set).start()
        with pytest.raises(AirflowTaskTimeout):
            operator.execute(run.context())
        operator.on_kill()  # as the task runner does
        killer.join()
    finally:
        signal.signal(signal.SIGTERM, old)
    end = time.monotonic() + 30
    while not ray.jobs and time.monotonic() < end:
        time.sleep(0.02)
    assert len(ray.jobs) == 1
    assert not ray.active


class TestUnderTheSupervisor:
    """Airflow's supervisor sends SIGKILL five seconds after SIGTERM: the stop must be the first request."""

    def start(self, ray: FakeRay) -> subprocess.Popen[bytes]:
        ray.script = lasting(600)
        return subprocess.Popen([sys.executable, "-m", "tests.support.killed_task"])

    def wait_until(self, when: Callable[[], bool], task: subprocess.Popen[bytes]) -> None:
        end = time.monotonic() + 120
        while not when():
            assert task.poll() is None
            assert time.monotonic() < end
            time.sleep(0.02)

    def test_the_stop_of_the_job_comes_first(self, ray: FakeRay) -> None:
        """The dashboard answers nothing more, to the stop as little as to a poll that is under way."""
        answers = threading.Event()
        task = self.start(ray)
        try:
            self.wait_until(lambda: len(polls(ray)) > 2, task)
            (name,) = ray.jobs
            slowly = lambda answer: (answer(), answers.wait(120))[0]  # noqa: E731
            ray.stage("GET", "/api", slowly, times=9)
            ray.stage("POST", f"/api/jobs/{name}/stop", slowly)
            task.send_signal(signal.SIGTERM)
            self.wait_until(lambda: not ray.active, task)
        finally:
            task.kill()
            answers.set()
            task.wait()
        assert not ray.active

    def test_an_upload_is_not_followed_by_a_submission(self, ray: FakeRay) -> None:
        uploads, goes_on = threading.Event(), threading.Event()
        ray.stage("PUT", "/api/packages", lambda answer: (uploads.set(), goes_on.wait(120), answer())[2])
        task = self.start(ray)
        try:
            assert uploads.wait(120)
            task.send_signal(signal.SIGTERM)
            goes_on.set()
            task.wait(120)
        finally:
            task.kill()
            task.wait()
        assert not ray.jobs


def _run_out_of_time(number: int, frame: object) -> None:
    raise AirflowTaskTimeout
