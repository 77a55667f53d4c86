# SPDX-License-Identifier: Apache-2.0
"""How many requests the followers of a head make, and when they see an end: under a clock that only waits."""

from __future__ import annotations

import asyncio
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_raybatch.cluster.follow.control import Lease, LeaseTerms
from airflow_provider_raybatch.cluster.follow.loop import follow_to_the_end
from airflow_provider_raybatch.cluster.follow.poll import Followed
from airflow_provider_raybatch.cluster.jobs_api import sharing
from airflow_provider_raybatch.cluster.jobs_api.address import ClusterAddress
from airflow_provider_raybatch.cluster.jobs_api.client import Pace
from tests.support.fake_ray import FakeRay, Script
from tests.support.stepped_heads import ENDING, follow_all, p95


def test_a_thousand_jobs_leave_room_on_their_head(monkeypatch: pytest.MonkeyPatch) -> None:
    """It answers 100 requests a second."""
    (head,) = follow_all(monkeypatch, (1000, 100.0))
    assert len(head.late) == ENDING
    assert p95(head.late) < 15
    assert head.requests("status") + head.requests("log") < 90


def test_a_slow_head_delays_no_job_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is asked seldom, and few jobs of a fast one are polled at their interval, each with its log."""
    slow, fast = follow_all(monkeypatch, (200, 4.0), (20, 100.0))
    assert slow.requests("status") > 2 * slow.requests("log")
    assert p95(fast.late) < 11
    assert fast.requests("log") > 0.9 * fast.requests("status") > 1


def test_logs_that_do_not_grow_are_read_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    (quiet,) = follow_all(monkeypatch, (400, 100.0), grows=False)
    (busy,) = follow_all(monkeypatch, (400, 100.0))
    assert p95(quiet.late) < 12
    assert quiet.requests("log") < busy.requests("log") / 3


def test_a_follower_that_goes_on_loses_no_line_to_a_busy_head(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is in the log at its first read was shown by the follower before it."""
    (head,) = follow_all(monkeypatch, (400, 20.0), from_start=False)
    assert len(head.late) == ENDING
    assert all(head.shown[name] for name in head.ends)


def test_a_lease_outlasts_stretched_pauses() -> None:
    pace = Pace()
    pace.followers = 100_000
    for orphan_timeout, longest in ((0.0, 60.0), (30.0, 10.0), (90.0, 30.0), (21_600.0, 60.0)):
        terms = LeaseTerms("k", attempt=1, orphan_timeout=orphan_timeout)
        job = Followed("x", lease=Lease(terms))
        assert pace.pause(job.poll_interval, job.longest_pause) == longest
    assert pace.pause(3600, job.longest_pause) == 3600


async def test_followers_that_come_and_go_leave_nothing(ray: FakeRay) -> None:
    """As triggers that are cancelled and resumed; a wrong token fails its own followers alone."""
    ray.token, ray.script = "good", lambda ray, body: Script(seconds=3600)
    good, bad = (ClusterAddress(ray.url, token=token) for token in ("good", "bad"))
    ray.submit(submission_id="x")
    loop, before = asyncio.get_running_loop(), asyncio.all_tasks()
    job, log = Followed("x", ray.session_name, poll_interval=0.01), SimpleNamespace(info=print, warning=print)
    for _ in range(3):
        tasks = [asyncio.create_task(follow_to_the_end(one, job, log)) for one in [good, bad] * 20]  # type: ignore[arg-type]
        polled = asyncio.Event()
        done = partial(loop.call_soon_threadsafe, polled.set)
        ray.stage("GET", "/api/jobs/x", lambda answer: answer(), times=60)
        ray.stage("GET", "/api/jobs/x", lambda answer, done=done: (done(), answer())[1])
        await polled.wait()
        clients: dict[Any, Any] = sharing._CLIENTS[loop]
        assert {one.users for one in clients.values()} <= {20}
        assert not any(task.done() for task in tasks[::2])
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        assert not clients
        assert asyncio.all_tasks() == before
