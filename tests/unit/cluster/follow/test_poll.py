# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import asyncio
import random
import time

from airflow_provider_raybatch.cluster.follow.poll import FollowState, follow, look
from airflow_provider_raybatch.cluster.jobs_api.models import JobRequest


async def followed(client, dashboard, story, **options):
    """Follow job x while `story`, a list of functions, happens one step after the other."""
    await client.submit(JobRequest("true", "x"))
    lines = []

    async def tell():
        for step in story:
            await asyncio.sleep(0.05)
            step()

    telling = asyncio.create_task(tell())
    options = {"poll_interval": 0.02, **options}
    outcome = await follow(client, "x", "session_1", on_lines=lines.extend, **options)
    await telling
    return outcome, [line.text for line in lines]


async def test_to_the_end(dashboard, client):
    outcome, lines = await followed(
        client,
        dashboard,
        [
            lambda: dashboard.logs.update(x=["one"]),
            lambda: dashboard.logs["x"].extend(["two", "three"]),
            lambda: (dashboard.logs["x"].append("last"), dashboard.end("x", "SUCCEEDED")),
        ],
    )
    assert outcome.state == "succeeded"
    assert lines == ["one", "two", "three", "last"]


async def test_a_gap_in_the_connection_is_borne(dashboard, client, answer):
    def vanish():
        for _ in range(6):
            dashboard.stage("GET", "/api/jobs/x", answer(abort=True))

    outcome, lines = await followed(client, dashboard, [vanish, lambda: dashboard.end("x", "SUCCEEDED")])
    assert outcome.state == "succeeded"
    assert len(lines) == 2
    assert "Waiting up to 600 s" in lines[0]
    assert "answers again" in lines[1]


async def test_a_dead_cluster_ends_the_following_and_not_the_job(dashboard, client, answer):
    def vanish():
        for _ in range(1000):
            dashboard.stage("GET", "/api/jobs/x", answer(503))

    outcome, _ = await followed(client, dashboard, [vanish], unreachable_timeout=0.3)
    assert outcome.state == "unreachable"
    assert dashboard.count("POST") == 1


async def test_lost_and_deleted(dashboard, client):
    def restart():
        dashboard.jobs.clear()
        dashboard.session_name = "session_2"

    assert (await followed(client, dashboard, [restart]))[0].state == "lost"
    dashboard.session_name = "session_1"
    assert (await followed(client, dashboard, [dashboard.jobs.clear]))[0].state == "deleted"


async def test_the_deadline_is_kept_between_two_polls(dashboard, client):
    started = time.monotonic()
    outcome, _ = await followed(client, dashboard, [], poll_interval=60, deadline=time.time() + 0.3)
    assert outcome.state == "timeout"
    assert time.monotonic() - started < 5
    assert dashboard.jobs["x"]["status"] == "RUNNING"


async def test_a_flood_of_lines_is_caught_up_with(dashboard, client):
    await client.submit(JobRequest("true", "x"))
    dashboard.logs["x"] = ["before"]
    first = await look(client, "x", FollowState(session_name="session_1"))
    dashboard.logs["x"] += [f"line {number}" for number in range(3500)]
    second = await look(client, "x", first.state)
    assert "2,500 lines of the driver's log left out" in second.lines[0].text
    assert [line.text for line in second.lines[1:]] == dashboard.logs["x"][-1000:]
    dashboard.logs["x"].append("after")
    assert [line.text for line in (await look(client, "x", second.state)).lines] == ["after"]


async def test_the_log_of_a_job_without_a_node_is_read_whole(dashboard, client):
    await client.submit(JobRequest("true", "x"))
    dashboard.jobs["x"]["driver_node_id"] = None
    dashboard.logs["x"] = ["Runtime env is setting up."]
    verdict = await look(client, "x", FollowState())
    assert [line.text for line in verdict.lines] == ["Runtime env is setting up."]


async def test_a_look_asks_for_little_more_than_what_is_new(dashboard, client):
    """Ray reads the end of a log alone, so each look tells it how much of that is wanted."""
    await client.submit(JobRequest("true", "x"))
    dashboard.logs["x"] = [f"line {number}" for number in range(900)]
    state = (await look(client, "x", FollowState())).state
    state = (await look(client, "x", state)).state
    dashboard.bytes_of_logs = 0
    shown = []
    for number in range(20):
        dashboard.logs["x"] += [f"step {number}, {part}" for part in range(3)]
        verdict = await look(client, "x", state)
        shown += [line.text for line in verdict.lines]
        state = verdict.state
    assert shown == dashboard.logs["x"][900:]
    assert dashboard.bytes_of_logs < 20 * 400


async def test_bursts_after_silence_come_through_once_and_in_order(dashboard, client):
    generator = random.Random(7)
    await client.submit(JobRequest("true", "x"))
    dashboard.logs["x"] = []
    state, shown = FollowState(), []
    for _ in range(60):
        # Many lines are alike, as progress bars and blank lines are.
        dashboard.logs["x"] += [
            f"line {generator.randrange(4)}" for _ in range(generator.choice([0, 0, 1, 2, 30, 200]))
        ]
        verdict = await look(client, "x", state)
        shown += [line.text for line in verdict.lines]
        state = verdict.state
    assert shown == dashboard.logs["x"]


async def test_lines_that_are_all_alike_are_counted(dashboard, client):
    await client.submit(JobRequest("true", "x"))
    state = FollowState()
    for number in range(1, 40):
        dashboard.logs["x"] = ["again"] * number * 2
        verdict = await look(client, "x", state)
        assert len(verdict.lines) == 2
        state = verdict.state
