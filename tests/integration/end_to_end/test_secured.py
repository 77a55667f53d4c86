# SPDX-License-Identifier: Apache-2.0
"""A cluster that requires a token, and S3 that requires keys."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest
import requests
from botocore.exceptions import ClientError

from airflow_provider_raybatch.dataset import Rows, open_dataset

from ..conftest import RayCluster
from .conftest import connect
from .lake import Lake
from .ray_jobs import RayJobs
from .rest import AirflowApi, Task
from .secrecy import Secrets, left_by_airflow, left_in_objects
from .stack import AirflowStack

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

ROWS = 40
ASKED = 2 * 2 * ROWS  # two personas, two samples


@pytest.fixture(scope="module")
def token_jobs(api: AirflowApi, token_ray_cluster: RayCluster) -> Iterator[RayJobs]:
    with closing(connect(api, "ray_token", token_ray_cluster)) as jobs:
        yield jobs


@pytest.fixture(scope="module")
def task(airflow: AirflowStack, api: AirflowApi, token_jobs: RayJobs, lake: Lake) -> Task:
    """The example's batch inference, deferrable, from S3 to S3 over the secured cluster."""
    lake.connect(api, "lake")
    lake.write_rows("in/rows.jsonl", ({"topic_id": n, "topic": f"topic {n}"} for n in range(ROWS)))
    api.unpause("report_on_questions")  # events don't start a paused DAG
    example = {
        "SOURCE": "s3://lake/in/",
        "OUTPUT": "s3://lake/out",
        "ENGINE": "echo",
        "CONN_ID": "ray_token",
        "AWS_CONN_ID": "lake",
        "DEFERRABLE": "true",
    }
    airflow.show_dags({f"RAYBATCH_EXAMPLE_{name}": value for name, value in example.items()})
    run = api.first_run("nightly_synthetic_data").wait(timeout=800)
    return run.task("write")


def test_cluster_and_bucket_are_locked(token_ray_cluster, lake):
    assert requests.get(f"{token_ray_cluster.url}/api/jobs/", timeout=10).status_code == 401
    for wrong in (replace(lake, key_id="AKIANOBODY"), replace(lake, secret="guessed")):
        with pytest.raises(ClientError, match="403"):
            wrong.client().head_bucket(Bucket="lake")


def words_asked(row: dict[str, Any]) -> set[str]:
    """Return the words of the prompt for a draft."""
    prompt = f"{row['instruction']} Answer in JSON. Write one question and answer about: {row['topic']}"
    return set(prompt.split())


def test_dataset_is_in_the_bucket(task, token_jobs, lake, as_airflow):
    result = task.xcom()
    assert result["bucket"] == "lake"
    assert result["uri"] == f"s3://lake/{result['key_prefix']}".rstrip("/")
    listed = lake.client().list_objects_v2(Bucket="lake", Prefix=result["key_prefix"])["Contents"]
    dataset = open_dataset(result, "lake")
    assert dataset.files == [f"s3://lake/{entry['Key']}" for entry in listed]
    answers = dataset.to_arrow().to_pylist()
    assert len(answers) == ASKED == dataset.manifest.counts.ok
    # The echo makes its texts of the words of the prompt.
    assert all(set(row["draft_question"].split()) <= words_asked(row) for row in answers)
    assert all(row["judge_score"] in {1, 3, 5} for row in answers)
    (job,) = token_jobs.of(task)
    assert job["submission_id"] == result["submission_id"]


def test_tasks_and_dags_behind_it_read_from_the_bucket(task):
    accepted = task.run.task("accept").xcom()
    assert accepted["bucket"] == "lake"
    assert task.run.task("load").asset_event()["extra"]["manifest_uri"] == accepted["manifest_uri"]
    # With those of other tests' nights, if these have ended meanwhile.
    reported = task.run.task("load").run_after().wait().task("report").xcom()
    assert {one["uri"]: one["rows"] for one in reported}[accepted["uri"]] == accepted["rows"]


@pytest.mark.thorough("a second night behind locks; test_nights plays one always")
def test_second_night_accepts_what_is_new(task, lake, as_airflow):
    """The echo answers the same on both nights."""
    first, second = task.run, task.run.api.trigger("nightly_synthetic_data").wait(timeout=800)
    accepted = first.task("accept").xcom()
    card = lake.document(accepted["card_uri"])
    left = {step["step"]: step["rows"] for step in card["funnel"]}
    assert left["input"] == left["write"] == ASKED
    asked = {step["name"]: step["asked"] for step in card["runs"][0]["steps"]}
    assert asked == {"draft": ASKED, "repair": 0, "judge": ASKED, "rejudge": 0}
    assert first.task("load").xcom() == accepted["rows"] == left["near_duplicates"] > 0
    rejected = list(Rows(accepted["rejected"], aws_conn_id="lake").rows())
    assert len(rejected) + accepted["rows"] == ASKED
    assert all(row["rule"] and row["reason"] for row in rejected)

    again = second.task("accept").xcom()
    assert again["rows"] == 0
    assert "accepted_earlier" in {row["rule"] for row in Rows(again["rejected"], aws_conn_id="lake").rows()}
    result = second.task("write").xcom()
    assert (result["rows"], result["reused"]) == (ASKED, 0)  # each night has drafts of its own


def test_keys_are_in_no_file_of_the_tasks_around(task, lake, airflow):
    """Those of the batch inferences are looked through in test_canaries.py."""
    secrets = Secrets({"key": lake.secret})
    assert not secrets.leaks(left_in_objects(lake.contents("out/")))
    assert not secrets.leaks(left_by_airflow(airflow))
