# SPDX-License-Identifier: Apache-2.0
"""One job per run of a task, whatever dies; a new one if a user asks for it."""

from __future__ import annotations

import re
from typing import Any

import psutil
import pytest

from airflow_provider_raybatch.dataset import open_dataset

from .conftest import MODES
from .inputs import batch
from .waiting import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

# Each answer has two words: long enough for a kill meanwhile.
SLOWLY = {"seconds_per_token": 8}


TEXTS = ("one", "two")


@pytest.fixture
def conf(tmp_path):
    return batch(tmp_path, TEXTS)


@pytest.fixture(scope="module")
def dead_workers_runs(api, jobs, tmp_path_factory):
    """Runs by mode, in parallel, because Airflow notices the dead workers late."""
    folder = tmp_path_factory.mktemp("dead")
    return {mode: api.trigger(f"dies_after_post_{mode}", **batch(folder, TEXTS, mode)) for mode in MODES}


@pytest.mark.parametrize("mode", MODES)
def test_retry_adopts_what_a_dead_worker_had_submitted(mode, dead_workers_runs, jobs):
    task = dead_workers_runs[mode].wait(timeout=180).task("infer")
    assert_second_try_followed_the_first_ones_job(task, jobs)


def test_both_modes_return_alike(dead_workers_runs):
    blocking, deferrable = (dead_workers_runs[mode].wait(timeout=180).task("infer") for mode in MODES)
    assert shape(blocking.xcom()) == shape(deferrable.xcom())
    assert set(blocking.xcom()) >= {
        "uri",
        "manifest_uri",
        "format",
        "rows",
        "errors",
        "tokens",
        "submission_id",
    }
    assert blocking.xcom_keys() == deferrable.xcom_keys()


def shape(value: Any) -> Any:
    return {name: shape(inner) for name, inner in value.items()} if isinstance(value, dict) else type(value)


@pytest.mark.thorough("a triggerer that is started again; chaos kills one always")
def test_restarted_triggerer_goes_on_with_the_job(airflow, api, jobs, conf):
    task = api.trigger("batch_deferrable", engine_args=SLOWLY, **conf).task("infer")
    wait_until_followed(task)
    airflow.restart("triggerer")
    assert jobs.wait_for_one(task, "RUNNING", "SUCCEEDED")
    task.run.wait(timeout=180)
    assert task.read()["try_number"] == 1
    (job,) = jobs.of(task)
    assert job["status"] == "SUCCEEDED"
    assert_result_of(task, job)
    assert_shown_by_rays_dashboard(task, job, jobs)


def assert_shown_by_rays_dashboard(task, job, jobs):
    """Check that a person finds DAG, task, run and rows there."""
    assert re.fullmatch(r"raybatch-batch-deferrable-infer-[0-9a-f]{24}-0", job["submission_id"])
    assert list(job["metadata"].values())[:4] == [
        f"batch_deferrable.infer / {task.run.run_id}",
        "batch_deferrable",
        task.run.run_id,
        "infer",
    ]
    (page,) = jobs.datasets(job)
    assert page["dataset"].startswith("batch_deferrable.infer_")
    *_, replicas = page["operators"]
    assert replicas["name"] == "MapBatches(Replica(batch_deferrable:infer))"
    for shown in (page, replicas):
        assert (shown["state"], shown["progress"], shown["total"]) == ("FINISHED", len(TEXTS), len(TEXTS))
    assert {"Coordinator(batch_deferrable:infer)", f"MapWorker({replicas['name']})"} <= jobs.actors(job)
    log = jobs.log(job["submission_id"])
    assert "Progress bars disabled" not in log
    (last,) = [line for line in log.splitlines() if " rows committed at " in line]
    sentence, _, rest = last.partition(" ::raybatch:: ")
    assert task.xcom()["manifest_uri"] in sentence
    assert len(rest) < 300


@pytest.mark.thorough("a NUL byte in a real database; unit/cluster takes it out always")
def test_a_nul_byte_from_the_cluster_ends_no_triggerer(airflow, api, jobs):
    """PostgreSQL's JSONB refuses NUL; Ray quotes the end of a failed job's log in its message."""
    triggerer = airflow.pid("triggerer")
    bystander = api.trigger("sleep_deferrable", seconds=20)
    prints = api.trigger("sleep_deferrable", seconds=r"1; printf 'left\0right\n'; exit 3")
    task = prints.wait("failed", timeout=180).task("sleep")
    bystander.wait(timeout=120)
    assert counters(task) == (2, 1)
    assert any("failed" in line and "right" in line for line in task.log(2))
    assert airflow.pid("triggerer") == triggerer
    assert psutil.pid_exists(triggerer)


@pytest.mark.thorough("a trigger that fails; a dead worker's job is adopted always")
def test_retry_goes_on_with_the_job_of_a_failed_trigger(api, jobs, conf):
    task = api.trigger("bad_trigger", engine_args=SLOWLY, **conf).wait(timeout=180).task("infer")
    assert_second_try_followed_the_first_ones_job(task, jobs)


@pytest.fixture(scope="module")
def runs_that_fail_afterwards(api, jobs, tmp_path_factory):
    folder = tmp_path_factory.mktemp("afterwards")
    runs = {mode: api.trigger(f"fails_after_{mode}", **batch(folder, TEXTS, mode)) for mode in MODES}
    return {**runs, "submit": api.trigger("only_submits")}


@pytest.mark.parametrize("mode", MODES)
def test_retry_after_success_returns_the_same(mode, runs_that_fail_afterwards, jobs):
    task = runs_that_fail_afterwards[mode].wait(timeout=180).task("infer")
    assert counters(task) == (2, 1)
    (job,) = jobs.of(task)
    assert any(f"An earlier attempt returned job {job['submission_id']}" in line for line in task.log(2))
    assert_result_of(task, job)


def test_retry_of_a_task_that_only_submits_keeps_its_job(runs_that_fail_afterwards, jobs):
    task = runs_that_fail_afterwards["submit"].wait(timeout=180).task("sleep")
    assert counters(task) == (2, 1)
    (job,) = jobs.of(task)
    assert (job["status"], task.xcom()["submission_id"]) == ("RUNNING", job["submission_id"])
    jobs.stop(job["submission_id"])


def test_cleared_success_runs_again(api, jobs, conf):
    task = api.trigger("batch_deferrable", **conf).wait(timeout=180).task("infer")
    first = task.xcom()
    task.clear()
    wait_for("the run to start again", lambda: task.run.state in {"queued", "running"}, 30, api.evidence)
    task.run.wait(timeout=180)
    assert counters(task) == (2, 2)
    second = task.xcom()
    old, new = jobs.of(task)
    assert (old["submission_id"], new["submission_id"]) == (first["submission_id"], second["submission_id"])
    assert old["submission_id"] != new["submission_id"]
    assert first["manifest_uri"] != second["manifest_uri"]
    assert_result_of(task, new)
    # Readers of last night's dataset are not disturbed.
    assert answers(first) == answers(second)
    assert not {*open_dataset(first).files} & {*open_dataset(second).files}


def wait_until_followed(task):
    """Wait until the driver's lines appear in the task's log, by worker or triggerer."""

    def has_driver_line():
        return any("checking source" in line for line in task.log())

    wait_for("the driver's first line", has_driver_line, 300, task.run.evidence)


def counters(task):
    """Return the counters that distinguish a retry from a clear."""
    found = task.read()
    return found["try_number"], found["max_tries"]


def assert_second_try_followed_the_first_ones_job(task, jobs):
    assert counters(task) == (2, 1)
    (job,) = jobs.of(task)
    assert job["status"] == "SUCCEEDED"
    assert job["submission_id"].endswith("-0")
    # Airflow may miss a dead worker only after its job has ended.
    found = re.compile(rf"(Re-attached to running|Found finished) job {job['submission_id']}")
    assert any(found.search(line) for line in task.log(2)), task.log(2)
    assert_result_of(task, job)


def assert_result_of(task, job):
    result = task.xcom()
    assert result["submission_id"] == job["submission_id"]
    assert (result["rows"], result["errors"]) == (2, 0)
    assert answers(result) == ["Say one", "Say two"]
    assert open_dataset(result).manifest.submission_id == job["submission_id"]
    assert task.xcom("_link_RayDashboardLink") == result["dashboard_url"]


def answers(result):
    return sorted(open_dataset(result).to_arrow()["response"].to_pylist())
