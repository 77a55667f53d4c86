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
from collections.abc import Callable
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowTaskTimeout, TaskDeferred

from airflow_provider_raybatch.contract.failures import FailureClass
from airflow_provider_raybatch.exceptions import RayBatchException
from airflow_provider_raybatch.operators import killing
from tests.support.airflow_tasks import Run
from tests.support.batches import batch, defer
from tests.support.fake_ray import FakeRay, Script, lasting


def polls(ray: FakeRay) -> list[tuple[str, str]]:
    return [request for request in ray.requests if request[1] == "/api/v0/logs/file"]


class killed_by_sigterm:  # noqa: N801 - reads as a function
    """Sends SIGTERM, handled as in the task runner: by the operator's `on_kill` in the main thread."""

    def __init__(self, operator: Any, when: Any) -> None:
        self._operator, self._when = operator, when

    def __enter__(self) -> None:
        self._old = signal.signal(signal.SIGTERM, lambda number, frame: self._operator.on_kill())
        self._thread = threading.Thread(target=self._kill)
        self._thread.start()

    def _kill(self) -> None:
        end = time.monotonic() + 60
        while not self._when() and time.monotonic() < end:
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGTERM)

    def __exit__(self, *args: object) -> None:
        self._thread.join()
        signal.signal(signal.SIGTERM, self._old)


def test_sigterm_stops_the_job(ray: FakeRay, run: Run) -> None:
    ray.script = lasting(60)
    operator = batch()
    with (
        killed_by_sigterm(operator, when=lambda: len(polls(ray)) > 3),
        pytest.raises(RayBatchException, match="stopped") as caught,
    ):
        operator.execute(run.context())
    assert caught.value.failure_class is FailureClass.CANCELLED
    assert not ray.active


def given_up(run: Run) -> None:
    """As Airflow's store is for an attempt after which the next one has begun."""
    run.store.values.clear()


def unreadable(run: Run) -> None:
    run.store.broken = True


def silent(run: Run) -> None:
    run.store.get = lambda *_: time.sleep(5)  # type: ignore[method-assign]


@pytest.mark.parametrize("before", [given_up, unreadable, silent])
def test_a_job_that_the_next_attempt_may_follow_goes_on(
    ray: FakeRay, run: Run, before: Callable[[Run], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A killed scheduler's successor begins the next attempt before the first one is ended."""
    monkeypatch.setattr(killing, "_STORE_TIMEOUT", 0.2)
    ray.script = lasting(1.5)
    operator = batch()

    def is_followed() -> bool:
        if len(polls(ray)) < 2:
            return False
        before(run)
        return True

    with killed_by_sigterm(operator, when=is_followed):
        assert operator.execute(run.context())["rows"] == 2


def submitting_slowly(ray: FakeRay) -> tuple[threading.Event, threading.Event]:
    """Two events: the submission has arrived, and Ray may make its job."""
    arrived, go_on = threading.Event(), threading.Event()

    def slow(ray: FakeRay, body: dict[str, Any]) -> Script:
        arrived.set()
        go_on.wait(60)
        return lasting(60)(ray, body)

    ray.script = slow
    return arrived, go_on


def test_sigterm_during_the_submission_stops_the_job(ray: FakeRay, run: Run) -> None:
    arrived, go_on = submitting_slowly(ray)
    operator = batch()
    with killed_by_sigterm(operator, when=arrived.is_set):
        threading.Timer(1.0, go_on.set).start()
        with pytest.raises(RayBatchException) as caught:
            operator.execute(run.context())
    assert caught.value.failure_class is FailureClass.CANCELLED
    assert len(ray.jobs) == 1
    assert not ray.active


def test_kill_leaves_the_job_alone_if_configured(ray: FakeRay, run: Run) -> None:
    ray.script = lasting(1.5)
    operator = batch(cancel_on_kill=False)
    with killed_by_sigterm(operator, when=lambda: bool(ray.active)):
        assert operator.execute(run.context())["rows"] == 2


def test_a_kill_touches_no_other_tasks_job(ray: FakeRay, run: Run) -> None:
    ray.script = lasting(60)
    with pytest.raises(TaskDeferred):
        batch(deferrable=True).execute(Run(task_id="another").context())
    operator = batch()
    with (
        killed_by_sigterm(operator, when=lambda: len(polls(ray)) > 3),
        pytest.raises(RayBatchException, match="stopped"),
    ):
        operator.execute(run.context())
    assert len(ray.active) == 1


def test_kill_before_a_submission_stops_nothing(ray: FakeRay, run: Run) -> None:
    ray.script = lasting(60)
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
    """Airflow's supervisor sends SIGKILL five seconds after SIGTERM, and this dashboard is slow."""

    @pytest.fixture
    def ray(self, ray: FakeRay, monkeypatch: pytest.MonkeyPatch) -> FakeRay:
        answer = ray.answer

        def slowly(method: str, path: str, *rest: Any) -> Any:
            done = answer(method, path, *rest)
            if self.is_slow:
                time.sleep(4)
            return done

        self.is_slow = False
        monkeypatch.setattr(ray, "answer", slowly)
        ray.script = lasting(600)
        return ray

    def kill(self, when: Callable[[], bool], *, slow: bool) -> None:
        task = subprocess.Popen([sys.executable, "-m", "tests.support.killed_task"])
        try:
            end = time.monotonic() + 120
            while not when():
                assert task.poll() is None
                assert time.monotonic() < end
                time.sleep(0.02)
            self.is_slow = slow
            task.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                task.wait(5)
        finally:
            task.kill()
            task.wait()

    def test_the_stop_of_the_job_comes_first(self, ray: FakeRay) -> None:
        self.kill(lambda: len(polls(ray)) > 2, slow=True)
        assert not ray.active

    def test_an_upload_is_not_followed_by_a_submission(self, ray: FakeRay) -> None:
        self.kill(lambda: any(method == "PUT" for method, _ in ray.requests), slow=False)
        time.sleep(1)
        assert not ray.jobs


def _run_out_of_time(number: int, frame: object) -> None:
    raise AirflowTaskTimeout
