# SPDX-License-Identifier: Apache-2.0
"""The example DAG on a real cluster: as it is, with vLLM, and deferrable with the engine that is quicker."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import pytest

from airflow_provider_raybatch.dataset import open_dataset
from airflow_provider_raybatch.workflows.rows import Rows

from .assets import event_of, run_after
from .conftest import MODES
from .ray_jobs import RayJobs
from .rest import AirflowApi, Run, Task
from .stack import AirflowStack

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(900)]

DAG_ID = "nightly_synthetic_data"
REPORT_ID = "report_on_questions"
PROGRESS = "of 400 rows ("


@dataclass(frozen=True)
class Night:
    """What happened: a run, and the run of the second DAG that followed."""

    run: Run
    report: Run

    @property
    def generate(self) -> Task:
        return self.run.task("generate")


@pytest.fixture(scope="module")
def night(airflow: AirflowStack, api: AirflowApi, jobs: RayJobs) -> Callable[[str], Night]:
    """The finished night of a mode, which is started when it is asked for first."""
    nights: dict[str, Night] = {}

    def finished(mode: str) -> Night:
        if mode not in nights:
            if mode == "blocking":  # as the example is
                run = start_last_night(airflow, api)
            else:
                finished("blocking")
                run = start_now(airflow, api)
            run.wait(timeout=700)
            nights[mode] = Night(run, run_after(run, "load").wait())
        return nights[mode]

    return finished


def start_last_night(airflow: AirflowStack, api: AirflowApi) -> Run:
    """The run that Airflow starts by itself when the DAG is unpaused."""
    airflow.show_dags({})
    api.unpause(REPORT_ID)  # first: a paused DAG takes no notice of events
    return api.first_run(DAG_ID)


def start_now(airflow: AirflowStack, api: AirflowApi) -> Run:
    airflow.show_dags({"RAYBATCH_EXAMPLE_DEFERRABLE": "true", "RAYBATCH_EXAMPLE_ENGINE": "echo"})
    return api.trigger(DAG_ID)


def test_table_holds_what_was_accepted(night, airflow):
    run = night("blocking").run
    manifest = open_dataset(night("blocking").generate.xcom()).manifest
    assert manifest.counts.input == 400 == manifest.counts.ok + manifest.counts.error
    assert manifest.versions["vllm"]
    accepted = run.task("accept").xcom()
    rows = list(Rows(accepted).rows())
    card = json.loads(Path(accepted["card_uri"]).read_text())
    left = {step["step"]: step["rows"] for step in card["funnel"]}
    assert left["input"] == 800  # two samples
    assert left["schema"] > 0.9 * left["input"]
    assert left["score_threshold"] == len(rows) > 0
    assert Rows(accepted["rejected"]).count >= left["repair"] - len(rows)
    with duckdb.connect(str(airflow.home / "raybatch_example/warehouse.duckdb"), read_only=True) as warehouse:
        query = "SELECT topic_id, question, answer FROM questions WHERE run_id = ?"
        loaded = warehouse.execute(query, [run.run_id]).fetchall()
    assert set(loaded) == {(int(row["topic_id"]), row["question"], row["answer"]) for row in rows}
    assert len(loaded) == len(rows) == run.task("load").xcom()


@pytest.mark.parametrize("mode", MODES)
def test_progress_and_link_are_seen(mode, night, jobs):
    generate = night(mode).generate
    log = generate.log()
    assert any(PROGRESS in line for line in log), log
    (job,) = jobs.of(generate)
    assert job["status"] == "SUCCEEDED"
    link = generate.xcom("_link_RayDashboardLink")
    assert link == generate.xcom()["dashboard_url"]
    assert link.endswith(f"/#/jobs/{job['submission_id']}")
    deferred = any("DEFERRED" in line for line in log)
    assert deferred == (mode == "deferrable")


def test_both_modes_return_alike(night):
    blocking, deferrable = (shape(night(mode).generate.xcom()) for mode in MODES)
    assert blocking == deferrable
    assert set(blocking) >= {"uri", "manifest_uri", "format", "rows", "errors", "tokens", "submission_id"}
    keys = [night(mode).generate.xcom_keys() for mode in MODES]
    assert keys[0] == keys[1]


def shape(value: Any) -> Any:
    return {name: shape(inner) for name, inner in value.items()} if isinstance(value, dict) else type(value)


@pytest.mark.parametrize("mode", MODES)
def test_asset_starts_the_second_dag(mode, night):
    run = night(mode).run
    accepted = run.task("accept").xcom()
    for task_id, result in (("generate", night(mode).generate.xcom()), ("load", accepted)):
        extra = event_of(run, task_id)["extra"]
        assert (extra["manifest_uri"], extra["rows"]) == (result["manifest_uri"], result["rows"])
    report = night(mode).report
    assert report.dag_id == REPORT_ID
    (told,) = report.task("report").xcom()
    assert (told["uri"], told["rows"]) == (accepted["uri"], accepted["rows"])
