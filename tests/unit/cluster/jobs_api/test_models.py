# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from dataclasses import asdict

import pytest

from airflow_provider_raybatch.cluster.jobs_api.errors import NotARayDashboardError
from airflow_provider_raybatch.cluster.jobs_api.models import (
    JobInfo,
    JobRequest,
    JobStatus,
)
from tests.support.refused import HOSTILE, refused


def test_what_is_not_asked_for_is_not_sent():
    assert set(JobRequest("true", "x").body()) == {"entrypoint", "submission_id", "runtime_env", "metadata"}
    given = {"entrypoint_num_cpus": 0.5, "entrypoint_num_gpus": 0, "entrypoint_resources": {"r": 1}}
    full = JobRequest("true", "x", **given, entrypoint_label_selector={}).body()
    assert full == {**JobRequest("true", "x").body(), **given}


def test_a_job_without_its_runtime_env():
    info = JobInfo.from_answer({
        "submission_id": "x",
        "status": "FAILED",
        "runtime_env": {"env_vars": {"KEY": "s3cret"}},
        "metadata": None,
        "something_new": 1,
    })
    assert "s3cret" not in repr(info)
    assert (info.status, dict(info.metadata)) == (JobStatus.FAILED, {})


def test_no_text_of_a_job_is_refused_by_a_database():
    texts = dict.fromkeys(("submission_id", "entrypoint", "error_type", "driver_node_id"), HOSTILE)
    metadata = {HOSTILE: HOSTILE, "raybatch.fingerprint": HOSTILE}
    info = JobInfo.from_answer({**texts, "status": "FAILED", "message": HOSTILE, "metadata": metadata})
    assert refused(asdict(info)) == []
    assert len(info.metadata) == 2


def test_message_of_a_job_is_bounded():
    """Its end is kept, which has the last lines of the log."""
    info = JobInfo.from_answer({"status": "FAILED", "message": "x" * 10**7 + "the cause"})
    assert info.message.endswith("xthe cause")
    assert len(info.message) < 100_000


async def test_unknown_status_means_another_server(ray, client):
    ray.stage("GET", "/api/jobs/x", (200, '{"submission_id": "x", "status": "DANCING"}'))
    with pytest.raises(NotARayDashboardError):
        await client.info("x")


async def test_no_jobs_are_taken_where_the_state_api_is_off(ray, client):
    assert await client.takes_jobs() is False
