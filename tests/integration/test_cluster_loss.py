# SPDX-License-Identifier: Apache-2.0
"""A head that dies and comes back on the same port has forgotten the job."""

from __future__ import annotations

import asyncio

import pytest

from airflow_provider_raybatch.cluster.follow.poll import Followed, follow
from airflow_provider_raybatch.cluster.jobs_api.client import RayJobsClient
from airflow_provider_raybatch.cluster.jobs_api.errors import StopTimeoutError
from airflow_provider_raybatch.cluster.jobs_api.models import JobRequest, JobStatus
from airflow_provider_raybatch.cluster.jobs_api.transport import RetryPolicy
from airflow_provider_raybatch.contract.failures import FailureClass


async def until_running(client, submission_id):
    for _ in range(300):
        if (await client.info(submission_id)).status is JobStatus.RUNNING:
            return
        await asyncio.sleep(0.2)
    pytest.fail(f"{submission_id} does not run")


@pytest.mark.thorough("a head that forgets its jobs; chaos kills one always")
async def test_a_restarted_head_lost_the_job(start_ray):
    quick = RetryPolicy(attempts=2, first_wait=0.1)
    lines = []
    with start_ray(with_token=False) as cluster:
        async with RayJobsClient(cluster.address, retries=quick) as client:
            # Ray reports that it stopped a pending job, and does nothing.
            await client.submit(JobRequest("true", "waiting", entrypoint_num_cpus=1000))
            assert await client.stop("waiting") is True
            with pytest.raises(StopTimeoutError, match="still PENDING"):
                await client.stop_until_terminal("waiting", 2)
            await client.submit(JobRequest("sleep 600", "long"))
            session = (await client.version()).session_name
            await until_running(client, "long")
        url = cluster.url
    async with RayJobsClient(cluster.address, retries=quick) as client:
        job = Followed("long", session, poll_interval=0.5, unreachable_timeout=300)
        following = asyncio.create_task(follow(client, job, lines.extend))
        await asyncio.sleep(2)
        assert not following.done()
        restarted = start_ray(with_token=False, dashboard_port=int(url.rpartition(":")[2]))
        again = await asyncio.to_thread(restarted.__enter__)
        try:
            assert again.url == url
            outcome = await asyncio.wait_for(following, 60)
        finally:
            await asyncio.to_thread(restarted.__exit__, None, None, None)
    assert (outcome.state, outcome.failure_class) == ("lost", FailureClass.CLUSTER_LOST)
    assert "Waiting up to 300 s" in lines[0].text
