# SPDX-License-Identifier: Apache-2.0
"""A job's last event is never missed: not where it comes between two requests, nor where noise follows it."""

from __future__ import annotations

from airflow_provider_raybatch.cluster.follow.control import Control, Lease
from airflow_provider_raybatch.cluster.follow.poll import FollowState, look
from airflow_provider_raybatch.cluster.jobs_api.models import JobRequest
from tests.unit.cluster.conftest import Answer
from tests.unit.cluster.follow.test_outcome import COMMITTED, KEY, SUMMARY


def lease():
    return Lease(Control(KEY, attempt=1))


async def looks(client, count):
    """Look until the job has ended, at most so often."""
    state = FollowState(session_name="session_1")
    for _ in range(count):
        verdict = await look(client, "x", state, lease=lease())
        state = verdict.state
        if verdict.outcome is not None:
            return verdict.outcome
    return None


async def test_a_job_that_commits_and_ends_right_after_its_log_was_read(dashboard, client):
    await client.submit(JobRequest("true", "x"))
    dashboard.logs["x"] = ["reading"]

    def read_and_end():
        dashboard.logs["x"].append(COMMITTED)
        dashboard.end("x", "SUCCEEDED")
        return Answer(200, b"reading\n")

    dashboard.stage("GET", "/api/v0/logs/file", read_and_end)
    outcome = await looks(client, 2)
    assert outcome is not None
    assert outcome.summary == SUMMARY


async def test_a_job_that_is_stopped_after_its_commit_was_shown(dashboard, client):
    await client.submit(JobRequest("true", "x"))
    dashboard.logs["x"] = [f"line {number}" for number in range(100)]
    state = FollowState(session_name="session_1")
    for added in ([], [COMMITTED], [f"noise {number}" for number in range(50)], [], [], ["the end"]):
        dashboard.logs["x"] += added
        state = (await look(client, "x", state, lease=lease())).state
    dashboard.end("x", "STOPPED")
    outcome = (await look(client, "x", state, lease=lease())).outcome
    assert outcome is not None
    assert (outcome.state, outcome.summary) == ("succeeded", SUMMARY)
