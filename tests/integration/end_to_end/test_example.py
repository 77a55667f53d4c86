# SPDX-License-Identifier: Apache-2.0
"""The unchanged example of synthetic data: a night with vLLM that Airflow starts by itself."""

from __future__ import annotations

import json
from pathlib import Path

import duckdb
import pytest

from airflow_provider_raybatch.dataset import Rows, open_dataset

from .ray_jobs import RayJobs
from .rest import AirflowApi, Run
from .stack import AirflowStack

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.thorough("the example with vLLM; make demo runs it"),
]


@pytest.fixture(scope="module")
def night(airflow: AirflowStack, api: AirflowApi, jobs: RayJobs) -> Run:
    airflow.show_dags({})
    return api.first_run("nightly_synthetic_data").wait(timeout=1500)


def test_table_holds_what_was_accepted(night, airflow):
    manifest = open_dataset(night.task("write").xcom()).manifest
    assert manifest.counts.input == 800 == manifest.counts.ok + manifest.counts.error
    assert manifest.versions["vllm"]
    accepted = night.task("accept").xcom()
    rows = list(Rows(accepted).rows())
    card = json.loads(Path(accepted["card_uri"]).read_text())
    left = {step["step"]: step["rows"] for step in card["funnel"]}
    assert left["input"] == 800
    assert left["write"] > 0.9 * left["input"]
    # The judge knows these facts: the model's answers are right.
    assert left["score_threshold"] > 0.9 * left["write"]
    assert left["near_duplicates"] == len(rows) > 0
    assert Rows(accepted["rejected"]).count == 800 - len(rows)
    assert any(row["draft_rejected"] for row in rows)
    steps = {step["name"]: step for step in card["runs"][0]["steps"]}
    assert steps["draft"]["asked"] == 800 > steps["repair"]["asked"] == steps["draft"]["rejected"] > 0
    assert steps["repair"]["ok"] > 0.9 * steps["repair"]["asked"]
    with duckdb.connect(str(airflow.home / "raybatch_example/warehouse.duckdb"), read_only=True) as warehouse:
        query = "SELECT topic_id, question, answer FROM questions WHERE run_id = ?"
        loaded = warehouse.execute(query, [night.run_id]).fetchall()
    assert set(loaded) == {(int(row["topic_id"]), row["question"], row["answer"]) for row in rows}
    assert len(loaded) == len(rows) == night.task("load").xcom()
