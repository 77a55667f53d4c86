# SPDX-License-Identifier: Apache-2.0
"""What the driver knows of its replicas: their reports, and what they have written."""

from __future__ import annotations

import time
from typing import Any

import ray

from airflow_provider_raybatch.job.engine.base import EngineInfo
from airflow_provider_raybatch.job.monitor.replica_progress import ReplicaProgress
from airflow_provider_raybatch.job.parts.part import Part
from airflow_provider_raybatch.job.work import Done, Ran

LAST_WORDS = 10.0
"""Seconds for replicas to end when every row is written; those that start, or hang, take longer."""
_ANSWER_SECONDS = 1.0
"""For the coordinator to answer a reading. On a busy node its process takes a minute to start. What comes
late counts for the next reading; the driver must see a stop or a deadline meanwhile."""
_LAST_ANSWER_SECONDS = 60.0


def _further(known: ReplicaProgress | None, other: ReplicaProgress) -> ReplicaProgress:
    """The later one of two reports of a replica, which only grow."""
    if known is None or known.progress < other.progress:
        return other
    return known


class Watch:
    """What the driver knows of its replicas so far.

    :param coordinator: its handle; ``None`` for engine ``ray_data_llm``.
    :ivar flushes: how often something was written.
    :ivar by_replica: the latest report of each replica that came with parts.
    """

    def __init__(self, coordinator: Any = None) -> None:
        self._coordinator = coordinator
        self._finished_at: float | None = None
        self._works = True
        self._asked: Any = None  # what the coordinator has not answered yet; it gives each news once
        self._parts: list[Part] = []
        self._answers: list[tuple[int, Part]] = []
        self._seconds: dict[str, float] = {}
        self._last_row = 0.0
        self.flushes = 0
        self.by_replica: dict[str, ReplicaProgress] = {}
        self._latest: list[ReplicaProgress] = []

    def add(self, done: Done, at: float) -> None:
        """Count what was written, and reported at `at` epoch seconds."""
        self._parts += done.parts
        self._answers += done.answers
        self.flushes += 1
        self._last_row = max(self._last_row, at)
        name = done.report.replica
        self.by_replica[name] = _further(self.by_replica.get(name), done.report)
        for stage, spent in done.seconds.items():
            self._seconds[stage] = self._seconds.get(stage, 0.0) + spent

    def ran(self, engine: EngineInfo) -> Ran:
        """What the run has left by now."""
        parts, answers, reports = tuple(self._parts), tuple(self._answers), tuple(self._latest)
        return Ran(parts, answers, reports, engine, dict(self._seconds), self._last_row)

    @property
    def is_finished(self) -> bool:
        """Whether every row is written."""
        return self._finished_at is not None

    @property
    def is_over(self) -> bool:
        """Whether every row is written, and the replicas have ended or had the time for it."""
        if self._finished_at is None:
            return False
        return not self._works or time.monotonic() - self._finished_at > LAST_WORDS

    def look(self) -> list[ReplicaProgress]:
        """The latest report of each replica, as far as the coordinator is quick enough to say.

        One that never answers ends the run by `no_progress_timeout`, as a replica that hangs does.
        """
        self._answered(_ANSWER_SECONDS)
        return self._latest

    def look_once_more(self) -> list[ReplicaProgress]:
        """The latest reports when nothing is generated any more, if the coordinator answers in time."""
        if self._asked is not None:
            self._answered(_LAST_ANSWER_SECONDS)  # as it was when that was asked; rows may have ended since
        self._answered(_LAST_ANSWER_SECONDS)
        return self._latest

    def _answered(self, seconds: float) -> None:
        """Add what was written since the last answer, if the next one comes in `seconds`."""
        if self._coordinator is None:
            self._latest = list(self.by_replica.values())
            return
        asked, self._asked = self._asked or self._coordinator.news.remote(), None
        try:
            reports, news, is_finished, self._works = ray.get(asked, timeout=seconds)
        except ray.exceptions.GetTimeoutError:
            self._asked = asked
            return
        for at, done in news:
            self.add(done, at)
        if is_finished and self._finished_at is None:
            self._finished_at = time.monotonic()
        latest = dict(self.by_replica)
        for report in reports:
            further = _further(report, latest.get(report.replica, report))
            latest[report.replica] = further.timed_as(report)
        self._latest = list(latest.values())
