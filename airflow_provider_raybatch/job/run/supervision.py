# SPDX-License-Identifier: Apache-2.0
"""The driver's watch over what generates: its progress, its limits, its end."""

from __future__ import annotations

import contextlib
import pickle
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NoReturn

import ray

from airflow_provider_raybatch.contract.events import Phase, Progress
from airflow_provider_raybatch.contract.failures import FailureClass, RaybatchError
from airflow_provider_raybatch.contract.text import count_of
from airflow_provider_raybatch.job.control.control import seconds_to_drain
from airflow_provider_raybatch.job.engine.base import EngineInfo
from airflow_provider_raybatch.job.monitor.progress import Tracker
from airflow_provider_raybatch.job.monitor.replica_progress import ReplicaProgress
from airflow_provider_raybatch.job.monitor.served_batch import BatchEndedError
from airflow_provider_raybatch.job.planning.plan import Plan
from airflow_provider_raybatch.job.run.cpu_tasks import ended_its_process, users_code
from airflow_provider_raybatch.job.run.pipeline import Pipeline
from airflow_provider_raybatch.job.run.ray_data_llm import dataset as ray_data_llm
from airflow_provider_raybatch.job.run.replicas import Replicas
from airflow_provider_raybatch.job.run.watch import LAST_WORDS, Watch
from airflow_provider_raybatch.job.work import Done, Job, Ran, WorkItem

_POLL = 0.5
_PROGRESS_EVERY = 10.0
_STARTING_EVERY = 30.0


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
    :param say: called with the progress every few seconds.
    :param check: judges each reading. With a :class:`BatchEndedError` it ends the run as a success.
    :raises RaybatchError: what else `check` raises, or that nothing moved for `no_progress_timeout`.
    """
    if isinstance(work, Replicas):
        replicas, pipeline, watch = work, work.pipeline, Watch(work.coordinator)
    else:
        replicas, watch = None, Watch()
        pipeline = _processor(job, plan, work, watch)
    spoken = _Spoken(plan, say)
    try:
        for reports, now in _readings(pipeline, watch):
            progress = tracker.update(reports, watch.flushes, now)
            pipeline.show(progress)
            check(reports, progress)
            spoken.say(progress, reports, now)
            _check_moving(job.spec.no_progress_timeout, tracker, reports, plan, now)
            if replicas is not None:
                replicas.end_unused()
        if plan.spans_nodes:
            pipeline.join(LAST_WORDS)  # without its placement group, an actor returns no ticket
    except Exception as error:
        if replicas is not None:
            _drain(replicas, error)
        if not isinstance(error, BatchEndedError):
            raise
        return watch.ran(_last_of(replicas, watch))
    reports = _last_reports(pipeline, watch, job.spec.prompt_function)
    engine = _engine(job, replicas, watch.is_finished)
    progress = tracker.update(reports, watch.flushes, time.time())
    pipeline.show(progress)
    if progress.text() != spoken.last:
        say(progress)
    return watch.ran(engine)


def _readings(pipeline: Pipeline, watch: Watch) -> Iterator[tuple[Sequence[ReplicaProgress], float]]:
    """The replicas' reports, and when they were read, until the run is over."""
    while pipeline.is_alive() and not watch.is_over:
        pipeline.join(_POLL)
        yield watch.look(), time.time()


def _last_reports(pipeline: Pipeline, watch: Watch, prompt_function: str | None) -> Sequence[ReplicaProgress]:
    """The replicas' reports after the run. Raises what has ended it, if rows are left."""
    reports = watch.look() if watch.is_finished else watch.look_once_more()
    if not watch.is_finished and pipeline.error is not None:
        _raise(pipeline.error, reports, prompt_function)
    return reports


def _last_of(replicas: Replicas | None, watch: Watch) -> EngineInfo:
    """The engine, and news, of a run that was ended. What it has written is on disk, reported or not."""
    with contextlib.suppress(ray.exceptions.RayError, RaybatchError):
        watch.look()
        if replicas is not None:
            return replicas.engine()
    return EngineInfo()


def _engine(job: Job, replicas: Replicas | None, is_finished: bool) -> EngineInfo:
    """The description of the engine that has done all rows."""
    if replicas is None:
        return EngineInfo(effective_sampling=dict(job.spec.sampling))
    if not is_finished:
        raise RaybatchError("Ray ended the replicas before they had done all rows.", FailureClass.INTERNAL)
    return replicas.engine()


def _processor(job: Job, plan: Plan, chunks: Sequence[WorkItem], watch: Watch) -> Pipeline:
    def take(row: Any) -> None:
        done: Done = pickle.loads(row["done"])
        total = ray_data_llm.added(watch.by_replica.get(ray_data_llm.NAME), done.report)
        watch.add(replace(done, report=total), time.time())

    return Pipeline(lambda: ray_data_llm.dataset(job, plan, chunks), job.spec, take)


class _Spoken:
    """What the log says of the progress every few seconds; `last` is the latest line."""

    def __init__(self, plan: Plan, say: Callable[[Phase | Progress], None]) -> None:
        self._plan, self._say = plan, say
        self._began = self._at = time.time()
        self.last = ""

    def say(self, progress: Progress, reports: Sequence[ReplicaProgress], now: float) -> None:
        has_rows = progress.done > progress.resumed or any(report.answered for report in reports)
        if now - self._at < (_PROGRESS_EVERY if has_rows else _STARTING_EVERY):
            return
        self._at, self.last = now, progress.text()
        if has_rows:
            self._say(progress)
            return
        ready = sum(report.state == "ready" for report in reports)
        noun = "engine" if self._plan.replicas == 1 else "engines"
        message = (
            f"{ready} of {self._plan.number_of_replicas} {noun} ready after {now - self._began:.0f} s, "
            "no row finished yet"
        )
        self._say(Phase(phase="starting", message=message))


def _drain(replicas: Replicas, error: Exception) -> None:
    """Give replicas the time to write what is finished and paid for.

    This ends before Ray sends SIGKILL to a stopped job: a driver that is killed leaves replicas behind.
    """
    # An engine that has stalled would stall the next job, too.
    stalled = isinstance(error, RaybatchError) and error.failure_class is FailureClass.STALLED
    replicas.coordinator.drain.remote(not stalled)
    ends = time.monotonic() + seconds_to_drain()
    while replicas.pipeline.is_alive() and time.monotonic() < ends:
        replicas.pipeline.join(_POLL)
        with contextlib.suppress(ray.exceptions.RayError):
            snapshot = replicas.coordinator.snapshot.remote()
            reports = ray.get(snapshot, timeout=max(0.0, ends - time.monotonic()))
            if all(report.state != "ready" for report in reports):
                return


def _raise(error: BaseException, reports: Sequence[ReplicaProgress], prompt_function: str | None) -> NoReturn:
    """Raise the failure that a replica reported, else `error`; a task of a stage calls `prompt_function`."""
    failure = next((report.failure for report in reports if report.failure is not None), None)
    if isinstance(error, ray.exceptions.WorkerCrashedError) and prompt_function is not None:
        raise ended_its_process(users_code(prompt_function=prompt_function)) from error
    if failure is None:
        raise error
    raise RaybatchError(failure[1], FailureClass(failure[0])) from error


def _check_moving(
    longest: float, tracker: Tracker, reports: Sequence[ReplicaProgress], plan: Plan, now: float
) -> None:
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
