# SPDX-License-Identifier: Apache-2.0
"""Followers of jobs on stand-ins of a head, under a clock that passes only while all of them wait."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from types import SimpleNamespace

import pytest

from airflow_provider_raybatch.cluster.follow import poll
from airflow_provider_raybatch.cluster.follow.poll import Followed, follow
from airflow_provider_raybatch.cluster.jobs_api.client import Pace
from airflow_provider_raybatch.cluster.jobs_api.models import JobInfo, JobStatus, LogTail

ENDING = 200


class SteppedLoop(asyncio.SelectorEventLoop):
    """Its time passes only when all that runs waits, and then at once."""

    now = 0.0

    def time(self) -> float:
        return self.now

    def _run_once(self) -> None:
        if not self._ready and self._scheduled:  # type: ignore[attr-defined]
            self.now = max(self.now, self._scheduled[0].when())  # type: ignore[attr-defined]
        super()._run_once()  # type: ignore[misc]


class Head:
    """A client and a head in one, which answers one request after the other.

    :ivar asked: requests by kind and second.
    :ivar queue: when it is free for the next request.
    :ivar late: seconds from the end of a job until its follower has seen it.
    :ivar shown: lines of each job.
    """

    def __init__(self, loop: SteppedLoop, answers_a_second: float, grows: bool) -> None:
        self.pace = Pace()
        self.asked: Counter[tuple[str, int]] = Counter()
        self.late: list[float] = []
        self.ends: dict[str, float] = {}
        self.shown: Counter[str] = Counter()
        self.queue = {"free": 0.0}
        self._loop, self._seconds, self._grows = loop, 1 / answers_a_second, grows

    async def _answer(self, kind: str) -> None:
        self.asked[kind, int(self._loop.now)] += 1
        self.queue["free"] = max(self.queue["free"], self._loop.now) + self._seconds
        await asyncio.sleep(self.queue["free"] - self._loop.now)

    async def info(self, name: str) -> JobInfo:
        await self._answer("status")
        ended = self._loop.now >= self.ends.get(name, 1e9)
        return JobInfo(name, JobStatus.SUCCEEDED if ended else JobStatus.RUNNING)

    async def log_tail(self, info: JobInfo, lines: int) -> LogTail:
        await self._answer("log")
        many = int(self._loop.now) if self._grows else 3
        return LogTail([f"line {number}" for number in range(many)][-lines:], lines)

    async def follow(self, name: str, *, from_start: bool) -> None:
        job = Followed(name, "session", from_start=from_start)
        await follow(self, job, lambda lines: self.shown.update({name: len(lines)}))  # type: ignore[arg-type]
        self.late.append(self._loop.now - self.ends[name])

    def requests(self, kind: str) -> float:
        """Return how many were made a second, once all jobs are followed."""
        return sum(many for (of, at), many in self.asked.items() if of == kind and at >= 60) / 140


def follow_all(
    monkeypatch: pytest.MonkeyPatch,
    *heads: tuple[int, float],
    grows: bool = True,
    is_one_head: bool = False,
    from_start: bool = True,
) -> list[Head]:
    """Follow so many jobs on heads that answer so much a second; some jobs end between second 60 and 160.

    :param is_one_head: whether they are one head, which several processes follow.
    """
    loop, chance, made = SteppedLoop(), random.Random(0), []
    monkeypatch.setattr(poll, "time", SimpleNamespace(time=loop.time, monotonic=loop.time))
    monkeypatch.setattr(poll, "random", chance)

    async def run() -> None:
        tasks = []
        for jobs, answers in heads:
            made.append(head := Head(loop, answers, grows))
            head.queue = made[0].queue if is_one_head else head.queue
            head.ends = {f"job-{number}": chance.uniform(60, 160) for number in range(min(jobs // 2, ENDING))}
            follows = (head.follow(f"job-{number}", from_start=from_start) for number in range(jobs))
            tasks += map(asyncio.create_task, follows)
        await asyncio.wait(tasks, timeout=200)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)

    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(run())
    return made


def p95(late: list[float]) -> float:
    return sorted(late)[int(0.95 * len(late))]
