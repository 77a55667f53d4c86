# SPDX-License-Identifier: Apache-2.0
"""Pictures in a bucket, asked about by a job whose driver is killed in the middle."""

from __future__ import annotations

import io
from pathlib import Path

import psutil
import pyarrow.parquet as pq
import pytest

from airflow_provider_raybatch.dataset import open_dataset
from tests.support.engine_log import engines
from tests.support.numbered_pictures import Picture

from .lake import BUCKET, Lake
from .ray_jobs import RayJobs
from .rest import AirflowApi, Task
from .waiting import wait_for

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.thorough("pictures in steps through Airflow; a killed job of each kind runs always"),
]

DAG = "pictures_in_steps"
ROWS = 80


@pytest.mark.usefixtures("as_airflow")
def test_a_retry_asks_nothing_twice_that_was_written(
    api: AirflowApi, jobs: RayJobs, lake: Lake, tmp_path: Path
) -> None:
    lake.connect(api, "lake")
    pictures = [Picture(number) for number in range(ROWS)]
    for one in pictures:
        lake.client().put_object(Bucket=BUCKET, Key=f"pictures/{one.number}.png", Body=one.content())
    places = [f"s3://{BUCKET}/pictures/{one.number}.png" for one in pictures]
    lake.write_rows("rows.jsonl", [{"picture": place, "text": place[-6:]} for place in places])
    log = tmp_path / "log"
    run = api.trigger(
        DAG,
        aws_conn_id="lake",
        source=f"s3://{BUCKET}/rows.jsonl",
        destination=f"s3://{BUCKET}/{DAG}",
        image_roots=[f"s3://{BUCKET}/pictures"],
        engine_args={"seconds_per_token": 0.3, "max_num_seqs": 4, "request_log": str(log)},
        sampling={"temperature": 0},
    )
    task = run.task("infer")

    jobs.wait_for_one(task, "RUNNING", timeout=240)
    driver = wait_for("the driver", lambda: driver_of(jobs, task), timeout=60, evidence=run.evidence)
    before = wait_for(
        "the first part", lambda: written(lake, DAG), timeout=240, evidence=run.evidence, pause=0.1
    )
    driver.kill()
    result = run.wait(timeout=300).task("infer").xcom()

    dataset = open_dataset(result, aws_conn_id="lake")
    said = [f"{one.said} Say {place[-6:]}" for place, one in zip(places, pictures, strict=True)]
    rows = dataset.to_arrow().to_pylist()
    assert {row["picture"]: row["say_response"] for row in rows} == dict(zip(places, said, strict=True))
    assert all(row["check_response"] == f"check {row['say_response']}" for row in rows)
    assert len(rows) == ROWS
    assert [one["status"] for one in jobs.of(task)] == ["FAILED", "SUCCEEDED"]
    steps = dataset.manifest.steps
    assert steps[0].resumed >= len(before)
    of_the_retry = [one for one in engines(log) if one.submission == result["submission_id"]]
    asked = [text for one in of_the_retry for text, _ in one.asked]
    assert len(asked) == len(set(asked)) == sum(ROWS - one.resumed for one in steps)
    assert {said[number] for number in before}.isdisjoint(asked)


def driver_of(jobs: RayJobs, task: Task) -> psutil.Process | None:
    """Return the process of the task's only job, once Ray knows it."""
    (job,) = jobs.of(task)
    return psutil.Process(int(job["driver_info"]["pid"])) if job["driver_info"] else None


def written(lake: Lake, folder: str) -> set[int]:
    """Return the numbers of the rows in the parts so far."""
    parts = lake.contents(f"{folder}/_raybatch/parts").items()
    tables = [pq.read_table(io.BytesIO(body)) for key, body in parts if key.endswith(".parquet")]
    return {number for table in tables for number in table["ordinal"].to_pylist()}
