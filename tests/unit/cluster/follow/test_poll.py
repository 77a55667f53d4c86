# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import asyncio
import math
import random
import time

from airflow_provider_raybatch.cluster.follow.outcome import FollowState
from airflow_provider_raybatch.cluster.follow.poll import follow, poll_once
from airflow_provider_raybatch.cluster.jobs_api.models import JobRequest
from tests.support.fake_ray import NO_ANSWER, Script


async def followed(client, ray, story, **options):
    """Follow job x while `story`, a list of functions, happens one step after the other."""
    await client.submit(JobRequest("true", "x"))
    lines = []

    async def advance():
        for step in story:
            await asyncio.sleep(0.05)
            step()

    advancing = asyncio.create_task(advance())
    options = {"poll_interval": 0.02, **options}
    outcome = await follow(client, "x", ray.session_name, on_lines=lines.extend, **options)
    await advancing
    return outcome, [line.text for line in lines]


async def test_to_the_end(ray, client):
    outcome, lines = await followed(
        client,
        ray,
        [
            lambda: ray.jobs["x"].lines.append("one"),
            lambda: ray.jobs["x"].lines.extend(["two", "three"]),
            lambda: (ray.jobs["x"].lines.append("last"), ray.jobs["x"].end("SUCCEEDED")),
        ],
    )
    assert outcome.state == "succeeded"
    assert lines == ["one", "two", "three", "last"]


async def test_connection_gap_is_tolerated(ray, client):
    def vanish():
        ray.stage("GET", "/api/jobs/x", NO_ANSWER, times=6)

    outcome, lines = await followed(client, ray, [vanish, lambda: ray.jobs["x"].end("SUCCEEDED")])
    assert outcome.state == "succeeded"
    assert len(lines) == 2
    assert "Waiting up to 600 s" in lines[0]
    assert "answers again" in lines[1]


async def test_a_dead_cluster_ends_the_following_and_not_the_job(ray, client):
    def vanish():
        ray.stage("GET", "/api/jobs/x", (503, ""), times=1000)

    outcome, _ = await followed(client, ray, [vanish], unreachable_timeout=0.3)
    assert outcome.state == "unreachable"
    assert ray.count("POST") == 1


async def test_lost_and_deleted(ray, client):
    assert (await followed(client, ray, [ray.restart]))[0].state == "lost"
    assert (await followed(client, ray, [ray.jobs.clear]))[0].state == "deleted"


async def test_the_deadline_is_kept_between_two_polls(ray, client):
    started = time.monotonic()
    outcome, _ = await followed(client, ray, [], poll_interval=60, deadline=time.time() + 0.3)
    assert outcome.state == "timeout"
    assert time.monotonic() - started < 5
    assert ray.jobs["x"].status == "RUNNING"


async def test_a_flood_of_lines_is_caught_up_with(ray, client):
    await client.submit(JobRequest("true", "x"))
    ray.jobs["x"].lines = ["before"]
    first = await poll_once(client, "x", FollowState(ray.session_name))
    ray.jobs["x"].lines += [f"line {number}" for number in range(3500)]
    second = await poll_once(client, "x", first.state)
    assert "2,500 lines of the driver's log left out" in second.lines[0].text
    assert [line.text for line in second.lines[1:]] == ray.jobs["x"].lines[-1000:]
    ray.jobs["x"].lines.append("after")
    assert [line.text for line in (await poll_once(client, "x", second.state)).lines] == ["after"]


async def test_a_pending_job_has_no_node_to_read_a_log_from(ray, client):
    ray.script = lambda ray, body: Script(["reading"], pending=math.inf)
    await client.submit(JobRequest("true", "x"))
    pending = await poll_once(client, "x", FollowState())
    assert (pending.lines, pending.outcome) == ((), None)
    ray.jobs["x"].script.pending = 0
    ray.jobs["x"].script.seconds = math.inf
    assert [line.text for line in (await poll_once(client, "x", pending.state)).lines] == ["reading"]


async def test_poll_requests_little_more_than_the_new_lines(ray, client):
    """Ray returns only the end of a log, so each poll asks for as many lines as it needs."""
    await client.submit(JobRequest("true", "x"))
    ray.jobs["x"].lines = [f"line {number}" for number in range(900)]
    state = (await poll_once(client, "x", FollowState())).state
    state = (await poll_once(client, "x", state)).state
    ray.bytes_of_logs = 0
    shown = []
    for number in range(20):
        ray.jobs["x"].lines += [f"step {number}, {part}" for part in range(3)]
        verdict = await poll_once(client, "x", state)
        shown += [line.text for line in verdict.lines]
        state = verdict.state
    assert shown == ray.jobs["x"].lines[900:]
    assert ray.bytes_of_logs < 20 * 400


async def test_bursts_after_silence_are_shown_once_and_in_order(ray, client):
    generator = random.Random(7)
    await client.submit(JobRequest("true", "x"))
    ray.jobs["x"].lines = []
    state, shown = FollowState(), []
    for _ in range(60):
        # Many lines are equal, as those of progress bars and blank lines are.
        ray.jobs["x"].lines += [
            f"line {generator.randrange(4)}" for _ in range(generator.choice([0, 0, 1, 2, 30, 200]))
        ]
        verdict = await poll_once(client, "x", state)
        shown += [line.text for line in verdict.lines]
        state = verdict.state
    assert shown == ray.jobs["x"].lines


async def test_lines_that_are_all_alike_are_counted(ray, client):
    await client.submit(JobRequest("true", "x"))
    state = FollowState()
    for number in range(1, 40):
        ray.jobs["x"].lines = ["again"] * number * 2
        verdict = await poll_once(client, "x", state)
        assert len(verdict.lines) == 2
        state = verdict.state
