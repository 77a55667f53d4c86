# SPDX-License-Identifier: Apache-2.0
"""Stopping a task stops its job, and nothing else does."""

from __future__ import annotations

import pytest

from ..integration.end_to_end.waiting import wait_for
from .plan import MODES
from .stopping import DEEDS, TIMED, Stop, bounds, deeds, going

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.thorough("each way of stopping a task; clears and marks run always"),
]


@pytest.fixture(scope="module")
def by_deed(world) -> dict[tuple[str, str], Stop]:
    return {(stop.way, stop.mode): stop for stop in deeds(world)}


@pytest.fixture(scope="module")
def by_bound(world) -> dict[tuple[str, str], Stop]:
    return {(stop.way, stop.mode): stop for stop in bounds(world)}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("way", DEEDS)
def test_what_users_do(way, mode, by_deed):
    assert not by_deed[way, mode].flaws, by_deed[way, mode]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("way", TIMED)
def test_bounds_of_time(way, mode, by_bound):
    assert not by_bound[way, mode].flaws, by_bound[way, mode]


def test_airflows_own_accidents_stop_nothing(world):
    airflow = world.airflow
    with going(world, ["stop_blocking", "stop_deferrable", "bad_trigger"]) as runs:
        before = [(run.job()["submission_id"], run.replicas()) for run in runs]
        killed = triggerer_of(runs[1].task)
        for component, with_family in (("dag-processor", True), ("scheduler", False), ("triggerer", True)):
            airflow.kill(component, with_family=with_family)
            airflow.start(component)
            airflow.wait_until_healthy()
        taken_over_while_frozen(airflow, runs[1].task, killed)
        assert_going_on(world, runs, before)


def taken_over_while_frozen(airflow, task, killed):
    """Freeze the triggerer until another one has its trigger; then let it continue."""
    first = another_triggerer(airflow, task, killed)
    with airflow.frozen("triggerer"):
        airflow.start("triggerer", beside="triggerer-2")
        another_triggerer(airflow, task, first)
    # It finds its trigger gone, as if a user had marked the task, and asks Airflow before it stops a job.
    wait_for(
        "the thawed triggerer to end its trigger",
        lambda: any("The task is still deferred, so job" in line for line in task.log()),
        90,
        task.run.evidence,
    )
    airflow.stop("triggerer-2")


def another_triggerer(airflow, task, last):
    """Wait until a triggerer other than `last` has the trigger; by default that takes half a minute."""

    def find():
        now = triggerer_of(task)
        return now if now != last else None

    return wait_for("another triggerer for the task", find, 120, airflow.evidence)


def triggerer_of(task):
    trigger = task.read()["trigger"]
    return trigger["triggerer_id"] if trigger else None


def assert_going_on(world, runs, before):
    rows = [run.rows_kept() for run in runs]
    for run, (submission_id, replicas), had in zip(runs, before, rows, strict=True):
        wait_for("more rows", lambda run=run, had=had: run.rows_kept() > had, 60, run.task.run.evidence)
        (job,) = world.jobs.of(run.task)
        assert (job["submission_id"], job["status"]) == (submission_id, "RUNNING")
        assert run.replicas() == replicas
        if run.mode == "blocking" and run.task.read()["try_number"] == 2:
            # Airflow takes back what a dead scheduler's workers run, once its heartbeat is 30 s old.
            adopts = lambda run=run: any("Re-attached to running job" in line for line in run.task.log(2))  # noqa: E731
            wait_for("the next attempt to adopt the job", adopts, 60, run.task.run.evidence)
        else:
            assert run.task.read()["try_number"] == 1
