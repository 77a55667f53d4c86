# SPDX-License-Identifier: Apache-2.0
"""Actions of users on running tasks, the counters that show a clear, and the id of an Airflow.

The counters are Airflow's own, and `operators/run_record.py` relies on them.
"""

from __future__ import annotations

import pytest

from .conftest import MODES
from .waiting import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

VARIABLE = "raybatch_installation_id"
FOLLOWED_IN = {"blocking": "running", "deferrable": "deferred"}


@pytest.fixture(scope="module")
def tasks(api, jobs):
    """Tasks with endless jobs, the first ones of their Airflow, started at once."""
    if any(found["key"] == VARIABLE for found in api.call("GET", "variables")["variables"]):
        api.call("DELETE", f"variables/{VARIABLE}")
    runs = {(name, mode): api.trigger(f"sleep_{mode}") for name in ("clear", "end") for mode in MODES}
    return {name: run.task("sleep") for name, run in runs.items()}


def test_first_tasks_at_once_end_with_one_id(tasks, jobs, api):
    metadata = [jobs.wait_for_one(task, "RUNNING", timeout=300)["metadata"] for task in tasks.values()]
    value = api.call("GET", f"variables/{VARIABLE}")["value"]
    assert {each["raybatch.namespace"] for each in metadata} == {value}


@pytest.mark.parametrize("mode", MODES)
def test_cleared_while_it_runs(mode, tasks, jobs):
    task = tasks["clear", mode]
    task.wait(FOLLOWED_IN[mode], timeout=60)
    jobs.wait_for_one(task, "RUNNING", timeout=120)  # a task runs before it has submitted its job
    task.clear()
    assert_a_new_run_followed(task, jobs)
    if mode == "blocking":  # Airflow tells the killed attempt `restarting`, and its own record no more
        assert any("stopping its job" in line for line in task.log(1))


def assert_a_new_run_followed(task, jobs):
    def two_jobs():
        found = jobs.of(task)
        return found if [job["status"] for job in found] == ["STOPPED", "RUNNING"] else None

    old, new = wait_for("a second job", two_jobs, 300, task.run.evidence)
    assert old["metadata"]["raybatch.run_token"] != new["metadata"]["raybatch.run_token"]
    found = task.read()
    # A clear allows the tries so far and one retry. On a slow machine, one more attempt may follow a killed
    # one before its DAG run is over.
    assert found["max_tries"] == found["try_number"] >= 2
    # On a slow machine the attempt that submitted the job may be gone, and a retry follows it.
    wait_for("its follower", lambda: is_followed(task), 90, task.run.evidence)
    task.mark("failed")
    wait_for_all_stopped(task, jobs)


def is_followed(task):
    return any("Running entrypoint" in line for line in task.log(task.read()["try_number"]))


def test_marked_as_success(tasks, jobs):
    task = tasks["end", "deferrable"]
    task.wait("deferred", timeout=60)
    task.mark("success")
    wait_for_all_stopped(task, jobs)
    assert task.run.wait("success", timeout=30)


def test_dag_run_marked_as_failed(tasks, jobs):
    task = tasks["end", "blocking"]
    task.wait("running", timeout=60)
    task.run.api.call("PATCH", task.run.path, json={"state": "failed"})
    wait_for_all_stopped(task, jobs)
    assert task.run.state == "failed"
    task.clear()
    assert_a_new_run_followed(task, jobs)


def wait_for_all_stopped(task, jobs):
    wait_for(
        "the end of its jobs",
        lambda: {job["status"] for job in jobs.of(task)} == {"STOPPED"},
        60,
        task.run.evidence,
    )
