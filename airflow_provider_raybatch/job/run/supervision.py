# SPDX-License-Identifier: Apache-2.0
"""The driver's watch over what generates: its progress, its limits, its end."""

from __future__ import annotations

import contextlib
import pickle
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import ray

from airflow_provider_raybatch.contract.events import Phase, Progress
from airflow_provider_raybatch.contract.failures import FailureClass, RaybatchError
from airflow_provider_raybatch.contract.text import count_of
from airflow_provider_raybatch.job.control.control import seconds_to_drain
from airflow_provider_raybatch.job.engine.base import EngineInfo
from airflow_provider_raybatch.job.monitor.progress import Tracker
from airflow_provider_raybatch.job.monitor.replica_progress import ReplicaProgress
from airflow_provider_raybatch.job.parts.part import Part
from airflow_provider_raybatch.job.planning.plan import Plan
from airflow_provider_raybatch.job.run.pipeline import Pipeline
from airflow_provider_raybatch.job.run.ray_data_llm import dataset as ray_data_llm
from airflow_provider_raybatch.job.run.replicas import Replicas
from airflow_provider_raybatch.job.work import Done, Job, WorkItem

_POLL = 0.5
_PROGRESS_EVERY = 10.0
_STARTING_EVERY = 30.0
_LAST_WORDS = 10.0
"""Seconds for replicas to end when every row is written; those that start, or hang, take longer."""


@dataclass
class Ran:
    """What the run left. It keeps no report but the latest of each replica.

    :param parts: everything that was written.
    :param flushes: how often something was written.
    :param reports: the replicas' last words.
    :param by_replica: what came with parts.
    :param engine: what an engine says of itself.
    """

    parts: list[Part] = field(default_factory=list)
    flushes: int = 0
    reports: list[ReplicaProgress] = field(default_factory=list)
    by_replica: dict[str, ReplicaProgress] = field(default_factory=dict)
    engine: EngineInfo = field(default_factory=EngineInfo)
    seconds: dict[str, float] = field(default_factory=dict)
    last_row: float = 0.0

    def add(self, done: Done, at: float, in_one: bool = False) -> None:
        """Count what was written.

        :param at: epoch seconds at which it was reported.
        :param in_one: whether reports are of single chunks and add up to that of one replica.
        """
        self.parts += done.parts
        self.flushes += 1
        self.last_row = max(self.last_row, at)
        name = ray_data_llm.NAME if in_one else done.report.replica
        known = self.by_replica.get(name)
        self.by_replica[name] = (
            ray_data_llm.added(known, done.report) if in_one else _further(known, done.report)
        )
        for stage, spent in done.seconds.items():
            self.seconds[stage] = self.seconds.get(stage, 0.0) + spent


def _further(known: ReplicaProgress | None, other: ReplicaProgress) -> ReplicaProgress:
    """The later one of two reports of a replica, which only grow."""
    if known is None or (known.rows, known.written) < (other.rows, other.written):
        return other
    return known


Check = Callable[[Sequence[ReplicaProgress], Progress], None]
"""Called with each reading; raises to end the run."""


def run(
    job: Job,
    plan: Plan,
    work: Replicas | Sequence[WorkItem],
    tracker: Tracker,
    say: Callable[[Phase | Progress], None],
    check: Check,
) -> Ran:
    """Do all rows that are left.

    :param work: replicas that have the rows; for engine ``ray_data_llm``, chunks of rows.
    :param say: told the progress every few seconds.
    :param check: judges each reading.
    :raises RaybatchError: what `check` raises, or that nothing moved for `no_progress_timeout`.
    """
    ran = Ran()
    if isinstance(work, Replicas):
        replicas, coordinator, pipeline = work, work.coordinator, work.pipeline
    else:

        def take(row: Any) -> None:
            ran.add(pickle.loads(row["done"]), time.time(), in_one=True)

        replicas, coordinator = None, None
        chunks = work
        pipeline = Pipeline(lambda: ray_data_llm.dataset(job, plan, chunks), job.spec, take)
    watch = _Watch(coordinator, ran)
    began = said = time.time()
    last = ""
    try:
        while pipeline.is_alive() and not watch.is_over:
            pipeline.join(_POLL)
            ran.reports = watch.look()
            now = time.time()
            progress = tracker.update(ran.reports, ran.flushes, now)
            check(ran.reports, progress)
            if now - said >= _PROGRESS_EVERY and (
                progress.done > progress.resumed or now - said >= _STARTING_EVERY
            ):
                started = progress.done > progress.resumed
                say(progress if started else _starting(ran.reports, plan, now - began))
                said, last = now, progress.text()
            _check_moving(job, tracker, ran.reports, plan, now)
            if replicas is not None:
                replicas.end_unused()
        if plan.spans_nodes:
            pipeline.join(_LAST_WORDS)  # without its placement group, an actor returns no ticket
    except Exception as error:
        # What is finished is paid for; give replicas the time to write it. It must end before Ray's SIGKILL
        # to a stopped job: killed in its shutdown, the driver would leave replicas behind.
        if coordinator is not None:
            # An engine that has stalled would stall the next job, too.
            hangs = isinstance(error, RaybatchError) and error.failure_class is FailureClass.STALLED
            _drain(coordinator, pipeline, keeps_engines=not hangs)
        raise
    ran.reports = watch.look()
    if not watch.is_finished:
        if pipeline.error is not None:
            _raise(pipeline.error, ran.reports)
        if coordinator is not None:
            raise RaybatchError(
                "Ray ended the replicas before they had done all rows.", FailureClass.INTERNAL
            )
    if replicas is None:
        ran.engine = EngineInfo(effective_sampling=dict(job.spec.sampling))
    else:
        ran.engine = replicas.engine()
    if (progress := tracker.update(ran.reports, ran.flushes, time.time())).text() != last:
        say(progress)
    return ran


class _Watch:
    """What the driver knows of its replicas.

    :param coordinator: handle of the coordinator; ``None`` for engine ``ray_data_llm``, which has none.
    """

    def __init__(self, coordinator: Any, ran: Ran) -> None:
        self._coordinator = coordinator
        self._ran = ran
        self._finished_at: float | None = None
        self._works = True

    @property
    def is_finished(self) -> bool:
        """Whether every row is written."""
        return self._finished_at is not None

    @property
    def is_over(self) -> bool:
        """Whether every row is written, and those who did it have ended, or had the time for it."""
        if self._finished_at is None:
            return False
        return not self._works or time.monotonic() - self._finished_at > _LAST_WORDS

    def look(self) -> list[ReplicaProgress]:
        """The latest word of each replica, with all that was written since the last look."""
        if self._coordinator is None:
            return list(self._ran.by_replica.values())
        reports, news, is_finished, self._works = ray.get(self._coordinator.news.remote(), timeout=60)
        for at, done in news:
            self._ran.add(done, at)
        if is_finished and self._finished_at is None:
            self._finished_at = time.monotonic()
        latest = dict(self._ran.by_replica)
        for report in reports:
            latest[report.replica] = _further(report, latest.get(report.replica, report))
        return list(latest.values())


def _drain(coordinator: Any, pipeline: Pipeline, keeps_engines: bool) -> None:
    coordinator.drain.remote(keeps_engines)
    ends = time.monotonic() + seconds_to_drain()
    while pipeline.is_alive() and time.monotonic() < ends:
        pipeline.join(_POLL)
        with contextlib.suppress(ray.exceptions.RayError):
            reports = ray.get(coordinator.snapshot.remote(), timeout=max(0.0, ends - time.monotonic()))
            if all(report.state != "ready" for report in reports):
                return


def _starting(reports: Sequence[ReplicaProgress], plan: Plan, seconds: float) -> Phase:
    ready = sum(report.state == "ready" for report in reports)
    noun = "engine" if plan.replicas == 1 else "engines"
    message = f"{ready} of {plan.number_of_replicas} {noun} ready after {seconds:.0f} s, no row finished yet"
    return Phase(phase="starting", message=message)


def _raise(error: BaseException, reports: Sequence[ReplicaProgress]) -> NoReturn:
    """Raise what ended the run: in a replica's own words, if it could still say them."""
    told = next((report.failure for report in reports if report.failure is not None), None)
    if told is None:
        raise error
    raise RaybatchError(told[1], FailureClass(told[0])) from error


def _check_moving(
    job: Job, tracker: Tracker, reports: Sequence[ReplicaProgress], plan: Plan, now: float
) -> None:
    longest = job.spec.no_progress_timeout
    if now - tracker.last_change <= longest:
        return
    reports = [report for report in reports if report.state != "waiting"]
    starting = sum(report.state == "starting" for report in reports)
    ready = len(reports) - starting
    if not reports:
        available = ", ".join(
            f"{amount:g} {name}"
            for name, amount in sorted(ray.available_resources().items())
            if name in ("CPU", "GPU")
        )
        where = f"no replica has started; free on the cluster: {available or 'nothing'}"
    elif starting:
        where = f"{starting} of {count_of(plan.replicas, 'replica')} still starting the engine"
    else:
        are_ready = count_of(ready, "replica is", "replicas are")
        where = f"{are_ready} ready, but no row finishes and no token comes"
    raise RaybatchError(
        f"no_progress_timeout: nothing moved for {longest:g} s ({where}); raise no_progress_timeout if that "
        "is expected.",
        FailureClass.STALLED,
    )
