# SPDX-License-Identifier: Apache-2.0
"""What ends a driver early: its deadline, a stop, and a lease that is not renewed."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from typing import Any

import pytest

from airflow_provider_raybatch.contract.arguments.limits import LimitArguments
from airflow_provider_raybatch.contract.events import Failed, Progress, read_line
from airflow_provider_raybatch.contract.failures import FailureClass, RaybatchError
from airflow_provider_raybatch.contract.submission import FollowerCommand
from airflow_provider_raybatch.job.control.control import Control, EventWriter, seconds_to_drain

PROGRESS = Progress(done=1200, total=5000)
KEY = "ab" * 32


class Clock:
    """A clock that a test sets."""

    now = 50.0

    def __call__(self) -> float:
        return self.now


def control(clock: Clock | None = None, **limits: Any) -> Control:
    return Control(LimitArguments(**limits), lambda event: None, clock or Clock())


def goes_on(it: Control) -> bool:
    return it.check(PROGRESS) is None


def ended(it: Control) -> RaybatchError:
    with pytest.raises(RaybatchError) as caught:
        it.check(PROGRESS)
    assert caught.value.failure_class.retryable
    return caught.value


def order(number: int, attempt: int = 1, **fields: Any) -> FollowerCommand:
    return FollowerCommand(attempt=attempt, nonce=str(number), **fields)


def test_a_deadline_is_worth_a_retry() -> None:
    error = ended(control(deadline=time.time() - 1))
    assert error.failure_class is FailureClass.TIMEOUT
    assert str(error) == "the job's deadline passed."


def test_a_new_attempt_brings_its_own_deadline() -> None:
    it = control(deadline=time.time() - 1, orphan_timeout=0)
    it.obey(order(1, deadline=time.time() + 60))
    assert goes_on(it)
    it.obey(order(2, deadline=None))
    assert goes_on(it)
    it.obey(order(3, deadline=time.time() - 1))
    assert ended(it).failure_class is FailureClass.TIMEOUT
    # The attempt before may still send its order, which must not win.
    it.obey(order(1, attempt=2))
    it.obey(order(9, attempt=1, deadline=time.time() - 1))
    assert goes_on(it)


def test_orphan_timeout_ends_a_job_without_a_follower() -> None:
    clock = Clock()
    it, unlimited = control(clock, orphan_timeout=100), control(clock, orphan_timeout=0)
    clock.now += 99
    assert goes_on(it)
    it.obey(order(1, orphan_timeout=100))
    clock.now += 99
    assert goes_on(it)
    clock.now += 1
    assert goes_on(unlimited)
    error = ended(it)
    assert error.failure_class is FailureClass.CANCELLED
    assert str(error) == "orphan_timeout: no task has followed the job for 100 s, so it ended itself."


def test_an_order_renews_the_lease_once() -> None:
    clock = Clock()
    it = control(clock, orphan_timeout=100)
    for _ in range(3):
        clock.now += 40
        it.obey(order(1, orphan_timeout=100))
    assert goes_on(it)
    clock.now += 20
    ended(it)


def test_two_followers_of_one_job_keep_its_lease() -> None:
    """A trigger and a retry write the same package; the driver may see only one of them for a long time."""
    clock = Clock()
    it = control(clock, orphan_timeout=100)
    later = time.time() + 60
    it.obey(order(1, attempt=2, orphan_timeout=100, deadline=later))
    for number in range(2, 8):
        clock.now += 60
        it.obey(order(number, attempt=1, orphan_timeout=1, deadline=time.time() - 1))
    assert goes_on(it)


def test_a_stop_waits_for_the_last_step_of_a_commit() -> None:
    done = []
    it = control()

    def commit() -> None:
        with it.uninterrupted():
            it.stop()
            done.append("manifest")

    with pytest.raises(KeyboardInterrupt):
        commit()
    assert done == ["manifest"]


def test_late_driver_ends_after_the_last_step_of_a_commit() -> None:
    """It runs in a process of its own, because it ends."""
    code = """
import time
from airflow_provider_raybatch.contract.arguments.limits import LimitArguments
from airflow_provider_raybatch.contract.events import Progress
from airflow_provider_raybatch.contract.failures import RaybatchError
from airflow_provider_raybatch.job.control import control
control._LOOK = 0.05
limits = LimitArguments(deadline=time.time() - 1000)
it = control.Control(limits, lambda event: print(event.text(), flush=True))
try:
    it.check(Progress(done=1300, total=5000, kept=1200))
except RaybatchError:
    pass
with it.uninterrupted(), it.watching():
    time.sleep(1)
    print("committed", flush=True)
with it.watching():
    time.sleep(60)
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert ended.returncode == 1, ended.stderr
    committed, late = ended.stdout.splitlines()
    assert committed == "committed"
    assert late == (
        "timeout: the job's deadline passed; 1,200 of 5,000 rows are kept, and the next attempt goes on from "
        "there."
    )


def stopped_while_engines_run(it: Control, *, asked: bool) -> None:
    with it.draining():
        it.stop()
        if asked:
            it.check(PROGRESS)


def test_a_stop_waits_for_finished_rows_only_while_engines_run() -> None:
    with pytest.raises(KeyboardInterrupt):
        control().stop()
    with pytest.raises(RaybatchError) as caught:
        stopped_while_engines_run(control(), asked=True)
    assert caught.value.failure_class is FailureClass.CANCELLED
    assert str(caught.value) == "the job was stopped."
    # The last row is done, so no further check comes from rows; the next step must not begin.
    with pytest.raises(KeyboardInterrupt):
        stopped_while_engines_run(control(), asked=False)


@pytest.mark.parametrize(("grace", "seconds"), [(None, 17), ("60", 57), ("3", 0), ("1", 0), ("soon", 17)])
def test_draining_ends_before_ray_kills(
    monkeypatch: pytest.MonkeyPatch, grace: str | None, seconds: float
) -> None:
    monkeypatch.delenv("RAY_JOB_STOP_WAIT_TIME_S", raising=False)
    if grace is not None:
        monkeypatch.setenv("RAY_JOB_STOP_WAIT_TIME_S", grace)
    assert seconds_to_drain() == seconds


def test_events_are_signed_as_soon_as_there_is_a_key(capsys: pytest.CaptureFixture[str]) -> None:
    writer = EventWriter()
    failed = Failed(failure_class=FailureClass.USER_ERROR, message="source: it is empty.")
    writer.emit(failed)
    writer.sign(KEY)
    writer.emit(failed)
    writer.emit(failed)
    text, *signed = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"\[\d\d:\d\d:\d\d\] user_error: source: it is empty\.", text)
    found = [read_line(line, KEY) for line in signed]
    assert [one and (one.number, one.event.model_copy(update={"at": None})) for one in found] == [
        (0, failed),
        (1, failed),
    ]
    assert all(one and abs((one.event.at or 0) - time.time()) < 600 for one in found)
