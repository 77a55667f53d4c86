# SPDX-License-Identifier: Apache-2.0
"""Two replicas draft two texts for each row in a bucket, and judge both; what runs ends in the middle, and is
run again.
"""

from __future__ import annotations

import io
from pathlib import Path

import psutil
import pyarrow.parquet as pq
import pytest

from airflow_provider_raybatch.dataset import open_dataset
from tests.support.engine_log import Engine, engines

from .lake import BUCKET, Lake
from .ray_jobs import RayJobs
from .rest import AirflowApi, Run
from .waiting import wait_for

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.thorough("steps that end in the middle, through Airflow; chaos/jobs kills such jobs always"),
]

ROWS = 100
DRAFTS = [f"draft text {number}" for number in range(ROWS)]
JUDGED = [f"judge {draft} of {number}" for number, draft in enumerate(DRAFTS)]
OTHERS = [f"judge {draft} #1 of {number}" for number, draft in enumerate(DRAFTS)]
ASKED = {"draft": 1, "judge": 2}
"""Requests of a row."""
PACE = {"seconds_per_token": 0.15, "max_num_seqs": 4, "startup_spread": 5.0}


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


@pytest.fixture
def run(api: AirflowApi, lake: Lake, log: Path) -> Run:
    lake.connect(api, "lake")
    lake.write_rows("rows.jsonl", [{"number": n, "text": f"text {n}"} for n in range(ROWS)])
    return api.trigger(
        "in_steps",
        aws_conn_id="lake",
        source=f"s3://{BUCKET}/rows.jsonl",
        destination=f"s3://{BUCKET}/judged/{log.parent.name}",
        prompt="draft {row.text}",
        engine_args={**PACE, "request_log": str(log)},
        sampling={"temperature": 0},
    )


@pytest.mark.usefixtures("as_airflow")
def test_no_answer_that_was_written_is_asked_again(run: Run, jobs: RayJobs, lake: Lake, log: Path) -> None:
    task = run.task("infer")
    folder = f"judged/{log.parent.name}/_raybatch/parts"
    wait_for("an engine", lambda: log.exists() and engines(log), timeout=240, evidence=run.evidence)
    both = wait_for("two replicas", lambda: of_two(log), timeout=240, evidence=run.evidence, pause=0.1)
    psutil.Process(both[0].pid).kill()
    before = wait_for("judged rows", lambda: some(written(lake, folder)), 240, run.evidence, pause=0.1)
    task.wait("deferred", timeout=60)
    task.clear()
    wait_for("a second job", lambda: len(jobs.of(task)) > 1, timeout=240, evidence=run.evidence)
    result = run.wait(timeout=300).task("infer").xcom()

    dataset = open_dataset(result, aws_conn_id="lake")
    rows = dataset.to_arrow().to_pylist()
    assert sorted(row["number"] for row in rows) == list(range(ROWS))
    assert all(row["draft_response"] == DRAFTS[row["number"]] for row in rows)
    for row in rows:
        answers = [one["text"] for one in row["judge_completions"]]
        assert answers == [row["judge_response"], OTHERS[row["number"]]]
        assert answers[0] == JUDGED[row["number"]]
    assert [one["status"] for one in jobs.of(task)] == ["STOPPED", "SUCCEEDED"]
    made = engines(log)
    asked = [text for one in made if one.submission == result["submission_id"] for text, _ in one.asked]
    assert before.isdisjoint(asked)
    requests = sum(ASKED[one.name] * (one.asked - one.resumed) for one in dataset.manifest.steps)
    assert len(asked) == len(set(asked)) == requests
    of_first_job = [
        text for one in made if one.submission != result["submission_id"] for text, _ in one.asked
    ]
    again = len(of_first_job) - len(set(of_first_job))
    # What the killed replica had in its engine, or not written.
    assert again <= 2 * 2 * ASKED["judge"] * PACE["max_num_seqs"]


def of_two(log: Path) -> list[Engine]:
    """Return the engines that have answered something, once they are two."""
    found = [one for one in engines(log) if one.generated]
    return found if len(found) > 1 else []


def written(lake: Lake, folder: str) -> set[str]:
    """Return the answers of all steps in the parts so far."""
    parts = lake.contents(folder).items()
    tables = [pq.read_table(io.BytesIO(body)) for key, body in parts if key.endswith(".parquet")]
    return {output["response"] for table in tables for output in table["output"].to_pylist()}


def some(answers: set[str]) -> set[str]:
    """Return all answers, once rows of both steps are among them."""
    return answers if len(answers.intersection(JUDGED)) >= ROWS // 10 else set()
