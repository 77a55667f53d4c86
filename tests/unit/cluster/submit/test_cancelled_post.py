# SPDX-License-Identifier: Apache-2.0
"""A submission that is cancelled during its POST ends once Ray has the job, so that it can be stopped."""

from __future__ import annotations

import asyncio
import threading

import pytest

from airflow_provider_raybatch.cluster.jobs_api.models import JobRequest
from airflow_provider_raybatch.cluster.submit.resolve import SubmissionKey, submit_or_adopt
from airflow_provider_raybatch.contract.submission import TaskKey

KEY = SubmissionKey(TaskKey(dag_id="d", run_id="r", task_id="t"), "token")


async def test_cancelled_submission_returns_once_its_job_exists(ray, client):
    arrived, may_answer = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    async def build(submission_id):
        return JobRequest("true", submission_id)

    def make_slowly(answer):
        loop.call_soon_threadsafe(arrived.set)
        assert may_answer.wait(60)
        return answer()

    ray.stage("POST", "/api/jobs/", make_slowly)
    submitting = asyncio.create_task(submit_or_adopt(client, KEY, "fingerprint", build))
    await arrived.wait()
    submitting.cancel()
    for _ in range(100):
        await asyncio.sleep(0)
    assert not submitting.done()
    may_answer.set()
    with pytest.raises(asyncio.CancelledError):
        await submitting
    assert list(ray.jobs) == [KEY.submission_id(0)]
