# SPDX-License-Identifier: Apache-2.0
"""The task finds its job again, whatever metadata the user gives it."""

from __future__ import annotations

import pytest

from airflow_provider_raybatch.cluster.jobs_api.models import JobRequest
from airflow_provider_raybatch.cluster.submit.resolve import (
    FINGERPRINT,
    RUN_TOKEN,
    TASK_KEY,
    SubmissionKey,
    submit_or_adopt,
)
from airflow_provider_raybatch.contract.submission import TaskKey

KEY = SubmissionKey(TaskKey(dag_id="d", run_id="r", task_id="t"), "token")


async def test_a_task_with_any_name_finds_its_job_again(ray, client):
    names = {"namespace": "Büro", "dag_id": "tägliche_berichte", "run_id": "r 日本", "task_id": "größe"}

    async def build(submission_id):
        return JobRequest("true", submission_id, metadata={"größe": "日本"})

    key = SubmissionKey(TaskKey(**names), "named-try1-token")
    jobs = [await submit_or_adopt(client, key, "fingerprint", build) for _ in range(2)]
    assert [job.adopted for job in jobs] == [False, True]
    (name,) = ray.jobs
    assert name.isascii()
    metadata = ray.jobs[name].body["metadata"]
    assert metadata.items() >= {f"raybatch.{field}": value for field, value in names.items()}.items()
    assert metadata["größe"] == "日本"


@pytest.mark.parametrize("name", [TASK_KEY, RUN_TOKEN, FINGERPRINT])
async def test_a_name_of_ours_in_the_users_metadata_changes_nothing(ray, client, name):
    async def build(submission_id):
        return JobRequest("true", submission_id, metadata={name: "mine", "team": "blue"})

    jobs = [await submit_or_adopt(client, KEY, "fingerprint", build) for _ in range(2)]
    assert [job.adopted for job in jobs] == [False, True]
    (job,) = ray.jobs.values()
    assert job.body["metadata"].items() >= {**KEY.metadata("fingerprint"), "team": "blue"}.items()
