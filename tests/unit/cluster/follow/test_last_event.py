# SPDX-License-Identifier: Apache-2.0
"""A job's last event is never missed, even between two requests or before later output."""

from __future__ import annotations

from airflow_provider_raybatch.cluster.follow.control import Lease, LeaseTerms
from airflow_provider_raybatch.cluster.follow.outcome import FollowState
from airflow_provider_raybatch.cluster.follow.poll import Followed, poll_once
from airflow_provider_raybatch.cluster.jobs_api.models import JobRequest
from tests.support.committed import COMMITTED, KEY, SUMMARY

JOB = Followed("x", lease=Lease(LeaseTerms(KEY, attempt=1)))


async def poll_until_end(ray, client, count):
    """Poll until the job has ended, at most `count` times."""
    state = FollowState(ray.session_name)
    for _ in range(count):
        verdict = await poll_once(client, JOB, state)
        state = verdict.state
        if verdict.outcome is not None:
            return verdict.outcome
    return None


async def test_commit_right_after_the_log_was_read_is_seen(ray, client):
    await client.submit(JobRequest("true", "x"))
    ray.jobs["x"].lines = ["reading"]

    def read_and_end(answer):
        read = answer()
        ray.jobs["x"].lines.append(COMMITTED)
        ray.jobs["x"].end("SUCCEEDED")
        return read

    ray.stage("GET", "/api/v0/logs/file", read_and_end)
    outcome = await poll_until_end(ray, client, 2)
    assert outcome is not None
    assert outcome.summary == SUMMARY


async def test_a_job_that_is_stopped_after_its_commit_was_shown(ray, client):
    await client.submit(JobRequest("true", "x"))
    ray.jobs["x"].lines = [f"line {number}" for number in range(100)]
    state = FollowState(ray.session_name)
    for added in ([], [COMMITTED], [f"noise {number}" for number in range(50)], [], [], ["the end"]):
        ray.jobs["x"].lines += added
        state = (await poll_once(client, JOB, state)).state
    ray.jobs["x"].end("STOPPED")
    outcome = (await poll_once(client, JOB, state)).outcome
    assert outcome is not None
    assert (outcome.state, outcome.summary) == ("succeeded", SUMMARY)
