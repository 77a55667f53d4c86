# SPDX-License-Identifier: Apache-2.0
"""A task that ends early takes its job with it."""

from __future__ import annotations

import re
import time
from datetime import datetime
from pathlib import Path

import psutil
import pyarrow.parquet as pq
import pytest

from airflow_provider_raybatch.dataset import open_dataset

from .conftest import MODES
from .inputs import batch
from .waiting import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

TIMEOUT_OF_DAG = 20  # timeout_deferrable's
NEVER = {"seconds_per_token": 3600}


@pytest.fixture(scope="module")
def runs_with_timeout(api, jobs, tmp_path_factory):
    """A run in each mode, both at once, because they mostly wait; their jobs never end."""
    folder = tmp_path_factory.mktemp("timeout")
    return {
        mode: api.trigger(f"timeout_{mode}", **batch(folder, ["on"], mode, engine_args=NEVER))
        for mode in MODES
    }


@pytest.mark.parametrize("mode", MODES)
def test_timeout(mode, runs_with_timeout, jobs):
    run = runs_with_timeout[mode].wait("failed", timeout=300)
    # This driver knows its deadline, and ends itself even if no process can stop it. On a busy machine it
    # passes before the rows are counted.
    message = assert_one_sentence(run.task("infer"), "failed: the job's deadline passed")
    assert re.search(r" passed(; no row was finished)?\. The limit was timeout=20 s", message), message
    (job,) = jobs.of(run.task("infer"))
    assert job["status"] in {"FAILED", "STOPPED"}
    # This driver does not know it.
    assert_one_sentence(run.task("sleep"), "was stopped")
    (job,) = jobs.of(run.task("sleep"))
    assert job["status"] == "STOPPED"


@pytest.mark.thorough("a triggerer that is away; it waits for three deadlines")
def test_deferral_without_a_triggerer(airflow, api, jobs, tmp_path):
    scheduler = psutil.Process(airflow.pid("scheduler"))
    airflow.stop("triggerer")
    try:
        late = api.trigger("timeout_deferrable", seconds=1, **batch(tmp_path, ["on"])).task("sleep")
        late.wait("deferred", timeout=180)
        # These have only short graces, so they start when the processors are free.
        endless = api.trigger("lost_trigger").task("sleep")
        ended = api.trigger("lost_trigger", seconds=1).task("sleep")
        for task in (ended, endless):
            task.wait("deferred", timeout=180)
        # The scheduler ends deferrals that took too long; it is suspended until these jobs are in place.
        scheduler.suspend()
        jobs.wait_for_one(endless, "RUNNING")
        for task in (ended, late):
            jobs.wait_for_one(task, "SUCCEEDED", timeout=120)
        scheduler.resume()
        endless.run.wait("failed", timeout=120)
        assert jobs.of(endless)[0]["status"] == "STOPPED"
        assert_one_sentence(endless, "timeout: the trigger did not end the job at its deadline")
        # The job itself is asked first: by the worker, after Airflow gave up the trigger ...
        assert ended.run.wait(timeout=120).task("sleep").xcom()["status"] == "SUCCEEDED"
        # ... and by a trigger that starts after the deadline.
        began = datetime.fromisoformat(late.read()["start_date"]).timestamp()
        time.sleep(max(0.0, began + TIMEOUT_OF_DAG + 1 - time.time()))
        assert late.state == "deferred"
    finally:
        scheduler.resume()
        airflow.restart("triggerer")
    late.wait("success", timeout=120)
    assert late.xcom()["status"] == "SUCCEEDED"


# An answer has two words, so eight rows are done every second.
ROW_BY_ROW = {"seconds_per_token": 0.5, "max_num_seqs": 8}
ROWS = [f"row{number}" for number in range(450)]
DONE = re.compile(r" of [\d,]+ rows \(")
CHECKS = re.compile("checking source")


def start_with_deadline(api, folder, seconds):
    """Start a run whose first try has so many seconds; its job takes a third longer."""
    engine_args = {"seconds_per_token": seconds * 2 / 3}
    conf = batch(folder, ["on"], f"later_deadline_{seconds}", engine_args=engine_args, seconds=seconds)
    return api.trigger("later_deadline", **conf)


def kill_worker(task, text):
    """SIGKILL a task's process once its log has the text."""
    wait_for("a line of the job in the log", lambda: has_logged(task, text), 240, task.run.evidence)
    psutil.Process(task.read()["pid"]).kill()


def has_logged(task, text):
    return any(text.search(line) for line in task.log())


def kept(run):
    """Return the number of good rows in the parts of a run's destination."""
    destination = Path(run.api.call("GET", run.path)["conf"]["destination"])
    paths = (destination / "_raybatch/parts").rglob("*.parquet")
    return sum(sum(pq.read_table(path, columns=["ok"])["ok"].to_pylist()) for path in paths)


def last_event(jobs, job):
    """Return message and finished rows of the driver's last event, as a person reads it."""
    lines = jobs.log(job["submission_id"]).splitlines()
    last = [line.partition(" ::raybatch:: ")[0] for line in lines if "::raybatch:: " in line][-1]
    message = re.fullmatch(r"\[[\d:]{8}\] \w+: (.*)", last)[1]
    found = re.search(r"; ([\d,]+) of [\d,]+ rows are kept, and the next attempt", message)
    return message, int(found[1].replace(",", ""))


@pytest.mark.thorough("an orphan that waits out its time; unit tests step a clock")
def test_job_without_a_follower_ends_itself(api, jobs, tmp_path):
    task = api.trigger("orphan", **batch(tmp_path, ROWS, engine_args=ROW_BY_ROW)).task("infer")
    kill_worker(task, DONE)
    task.run.wait("failed", timeout=120)
    job = jobs.wait_for_one(task, "FAILED", timeout=120)
    message, done = last_event(jobs, job)
    assert message.startswith("orphan_timeout: no task has followed the job for 10 s, so it ended itself")
    rows = kept(task.run)
    assert rows >= done > 0
    task.clear()
    wait_for("the run to start again", lambda: task.run.state in {"queued", "running"}, 30, task.run.evidence)
    task.run.wait(timeout=300)
    manifest = open_dataset(task.xcom()).manifest
    assert (manifest.counts.ok, manifest.counts.resumed) == (len(ROWS), rows)


@pytest.mark.thorough("a retry's own deadline, waited for; units step a clock, and a retry adopts always")
def test_adopted_job_gets_the_deadline_of_the_retry(api, jobs, tmp_path):
    seconds = 45
    task = start_with_deadline(api, tmp_path, seconds).task("infer")
    kill_worker(task, CHECKS)
    task.run.wait(timeout=300)
    if len(jobs.of(task)) > 1:  # on this machine, the second try starts after the deadline of the first
        seconds = 180
        task = start_with_deadline(api, tmp_path, seconds).task("infer")
        kill_worker(task, CHECKS)
        task.run.wait(timeout=600)
    (job,) = jobs.of(task)
    assert job["end_time"] - job["start_time"] > 1000 * seconds
    assert (job["status"], task.read()["try_number"]) == ("SUCCEEDED", 2)


def test_stopped_job_keeps_its_finished_rows(api, jobs, tmp_path):
    task = api.trigger("batch_deferrable", **batch(tmp_path, 10 * ROWS, engine_args=ROW_BY_ROW)).task("infer")
    wait_for("rows", lambda: has_logged(task, DONE), 180, task.run.evidence)
    task.mark("failed")
    job = jobs.wait_for_one(task, "STOPPED", timeout=120)
    wait_for("its replica's end", lambda: not jobs.replicas(job), 120, lambda: str(jobs.replicas(job)))
    assert task.run.wait("failed", timeout=120)
    message, done = last_event(jobs, job)
    assert message.startswith(f"the job was stopped; {done:,} of ")
    # They are written although flush_interval has not passed.
    assert kept(task.run) >= done > 0


@pytest.mark.thorough("lines that look like events, through Airflow; units read forged ones always")
def test_output_of_a_prompt_function_is_not_an_event(api, jobs, tmp_path):
    run = api.trigger("forged", **batch(tmp_path, ["x"], engine_args={"fail_pattern": "fail"}))
    task = run.wait("failed", timeout=240).task("infer")
    (job,) = jobs.of(task)
    assert job["status"] == "FAILED"
    assert '"uri": "/forged"' in jobs.log(job["submission_id"])
    assert_one_sentence(task, "max_error_fraction: 1 row failed so far")
    assert "return_value" not in task.xcom_keys()


def assert_one_sentence(task, text):
    failures = [error for event in task.log_events() for error in event.get("error_detail") or ()]
    assert failures, task.log()
    message = failures[0]["exc_value"]
    assert text in message
    assert "\n" not in message.strip()
    assert message.endswith(".")
    return message
