# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import asyncio
import math
import random
import time
from types import SimpleNamespace

import pytest

from airflow_provider_raybatch.cluster.follow import poll
from airflow_provider_raybatch.cluster.follow.control import Lease, LeaseTerms
from airflow_provider_raybatch.cluster.follow.outcome import FollowState
from airflow_provider_raybatch.cluster.follow.poll import Followed, follow, poll_once
from airflow_provider_raybatch.cluster.jobs_api.client import LAST_LOG_LIMIT, LOG_LIMIT
from airflow_provider_raybatch.cluster.jobs_api.models import LONGEST_LINE, JobRequest
from tests.support.airflow_tasks import Clock
from tests.support.committed import COMMITTED, KEY, SUMMARY
from tests.support.fake_ray import NO_ANSWER, Script
from tests.support.refused import HOSTILE, unfit_for_logs

MIB = 2**20
JOB = Followed("x", lease=Lease(LeaseTerms(KEY, attempt=1)))


async def followed(client, ray, story, **options):
    """Follow job x while `story`, a list of functions, happens one step after the other."""
    await client.submit(JobRequest("true", "x"))
    lines = []

    async def advance():
        for step in story:
            await asyncio.sleep(0.05)
            step()

    advancing = asyncio.create_task(advance())
    job = Followed("x", ray.session_name, **{"poll_interval": 0.02, **options})
    outcome = await follow(client, job, lines.extend)
    await advancing
    return outcome, [line.text for line in lines]


@pytest.fixture
async def job(client, ray):
    """Job x, which runs."""
    await client.submit(JobRequest("true", "x"))
    return ray.jobs["x"]


async def shown(client, state):
    """Poll job x once; return the new lines and the state."""
    verdict = await poll_once(client, Followed("x"), state)
    return [line.text for line in verdict.lines], verdict.state


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


async def test_the_deadline_is_kept_between_two_polls(ray, client, monkeypatch):
    clock, pauses = Clock(), []

    async def sleep(seconds):
        pauses.append(seconds)
        clock.forward(seconds)

    monkeypatch.setattr(time, "time", clock)
    monkeypatch.setattr(poll, "asyncio", SimpleNamespace(sleep=sleep))
    outcome, _ = await followed(client, ray, [], poll_interval=3600, deadline=time.time() + 600)
    assert outcome.state == "timeout"
    assert 500 < sum(pauses) <= 601
    assert ray.jobs["x"].status == "RUNNING"


async def test_a_flood_of_lines_is_caught_up_with(ray, client, job):
    job.lines = ["before"]
    _, state = await shown(client, FollowState(ray.session_name))
    job.lines += [f"line {number}" for number in range(3500)]
    (note, *lines), state = await shown(client, state)
    assert "2,500 lines of the driver's log left out" in note
    assert lines == job.lines[-1000:]
    job.lines.append("after")
    assert (await shown(client, state))[0] == ["after"]


async def test_a_pending_job_has_no_node_to_read_a_log_from(ray, client):
    ray.script = lambda ray, body: Script(["reading"], pending=math.inf)
    await client.submit(JobRequest("true", "x"))
    pending = await poll_once(client, Followed("x"), FollowState())
    assert (pending.lines, pending.outcome) == ((), None)
    ray.jobs["x"].script.pending = 0
    ray.jobs["x"].script.seconds = math.inf
    assert (await shown(client, pending.state))[0] == ["reading"]


async def test_poll_requests_little_more_than_the_new_lines(ray, client, job):
    """Ray returns only the end of a log, so each poll asks for as many lines as it needs."""
    job.lines = [f"line {number}" for number in range(900)]
    _, state = await shown(client, FollowState())
    _, state = await shown(client, state)
    ray.bytes_of_logs = 0
    told = []
    for number in range(20):
        job.lines += [f"step {number}, {part}" for part in range(3)]
        lines, state = await shown(client, state)
        told += lines
    assert told == job.lines[900:]
    assert ray.bytes_of_logs < 20 * 400


async def test_bursts_after_silence_are_shown_once_and_in_order(client, job):
    generator = random.Random(7)
    job.lines = []
    state, told = FollowState(), []
    for _ in range(60):
        # Many lines are equal, as those of progress bars and blank lines are.
        job.lines += [
            f"line {generator.randrange(4)}" for _ in range(generator.choice([0, 0, 1, 2, 30, 200]))
        ]
        lines, state = await shown(client, state)
        told += lines
    assert told == job.lines


async def test_very_long_lines_are_cut_and_bounded(ray, client, job):
    """Of lines that a poll can't hold the last ones are shown, each with a mark, and the rest is told."""
    job.lines = ["before"]
    _, state = await shown(client, FollowState(ray.session_name))
    job.lines += [f"{number} {'x' * 300_000}" for number in range(100)]
    (note, *texts), state = await shown(client, state)
    assert "lines of the driver's log left out" in note
    assert 3 <= len(texts) <= LOG_LIMIT // 300_000
    assert [text.split()[0] for text in texts] == [str(number) for number in range(100)][-len(texts) :]
    assert all(text.endswith("more bytes in this line] ") for text in texts)
    assert max(map(len, texts)) < LONGEST_LINE + 50
    job.lines.append("after")
    assert (await shown(client, state))[0] == ["after"]


async def test_a_line_that_grows_for_ever_is_told_once(ray, client, job):
    """As a progress bar without line ends is; what follows it is shown again."""
    job.lines = ["before"]
    _, state = await shown(client, FollowState(ray.session_name))
    told = []
    for size in (1, 5, 6):
        ray.stage("GET", "/api/v0/logs/file", (200, "before\n" + "." * size * MIB), times=9)
        lines, state = await shown(client, state)
        told += lines
        ray.unstage()
    assert len(told) == 1
    assert "ends in a line of more than 4 MiB" in told[0]
    job.lines = ["before", "." * 6 * MIB, *(f"after {number}" for number in range(5))]
    told = []
    for number in range(5, 7):
        lines, state = await shown(client, state)
        told += lines
        job.lines.append(f"after {number}")
    assert "left out" in told[0]
    assert told[-2:] == ["after 4", "after 5"]


async def test_last_event_is_found_below_and_in_very_long_lines(ray, client):
    for name, lines in {
        "below": ["x" * 300_000] * (LAST_LOG_LIMIT // 300_000 + 10) + [COMMITTED, "goodbye"],
        "in": ["x" * (LAST_LOG_LIMIT - MIB) + COMMITTED],
    }.items():
        await client.submit(JobRequest("true", name))
        ray.jobs[name].lines = lines
        ray.jobs[name].end("SUCCEEDED")
        job = Followed(name, lease=Lease(LeaseTerms(KEY, attempt=1)))
        verdict = await poll_once(client, job, FollowState(ray.session_name))
        assert verdict.outcome.summary == SUMMARY, name


async def test_lines_of_others_steer_neither_terminal_nor_log_page(ray, client, job):
    job.lines = [HOSTILE, "\x1b[2J::group::hidden", "\x1b[32mRay: green\x1b[0m"]
    texts, _ = await shown(client, FollowState(ray.session_name))
    assert texts[1:] == [": :group::hidden", "Ray: green"]
    assert unfit_for_logs(texts) == []


async def test_commit_right_after_the_log_was_read_is_seen(ray, client, job):
    job.lines = ["reading"]

    def read_and_end(answer):
        read = answer()
        job.lines.append(COMMITTED)
        job.end("SUCCEEDED")
        return read

    ray.stage("GET", "/api/v0/logs/file", read_and_end)
    first = await poll_once(client, JOB, FollowState(ray.session_name))
    assert first.outcome is None
    assert (await poll_once(client, JOB, first.state)).outcome.summary == SUMMARY


async def test_a_job_that_is_stopped_after_its_commit_was_shown(ray, client, job):
    job.lines = [f"line {number}" for number in range(100)]
    state = FollowState(ray.session_name)
    for added in ([], [COMMITTED], [f"noise {number}" for number in range(50)], [], [], ["the end"]):
        job.lines += added
        state = (await poll_once(client, JOB, state)).state
    job.end("STOPPED")
    outcome = (await poll_once(client, JOB, state)).outcome
    assert (outcome.state, outcome.summary) == ("succeeded", SUMMARY)
