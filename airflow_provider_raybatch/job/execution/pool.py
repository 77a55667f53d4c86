# SPDX-License-Identifier: Apache-2.0
"""The Ray Data pipeline, and the watch over it.

The Dataset holds tickets, not rows: one for each replica. One map over it with a pool of replicas is the
whole pipeline, so a cluster that can hold the replicas can run the job; no other stage takes resources or has
to be waited for. Ray Data gives what it is good at: the actor pool, restarts and retries. The coordinator
decides which replica works on which rows, at the moment at which a replica can take rows.
"""

from __future__ import annotations

import contextlib
import logging
import pickle
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import ray
import ray.data

from airflow_provider_raybatch.contract.events import Phase, Progress
from airflow_provider_raybatch.contract.failures import FailureClass, RaybatchError
from airflow_provider_raybatch.job.control.control import seconds_to_drain
from airflow_provider_raybatch.job.engine.base import EngineInfo
from airflow_provider_raybatch.job.execution.actors import ReplicaActors
from airflow_provider_raybatch.job.execution.coordinator import Coordinator, Input
from airflow_provider_raybatch.job.execution.cpu_tasks import on_this_node
from airflow_provider_raybatch.job.execution.ray_data_llm import dataset as ray_data_llm
from airflow_provider_raybatch.job.execution.replica.replica import Replica
from airflow_provider_raybatch.job.monitor.board import ReplicaReport
from airflow_provider_raybatch.job.monitor.progress import Tracker
from airflow_provider_raybatch.job.parts.part import Part
from airflow_provider_raybatch.job.planning.plan import Plan
from airflow_provider_raybatch.job.work import Done, Job, WorkItem

_POLL = 0.5
_PROGRESS_EVERY = 10.0
_STARTING_EVERY = 30.0
_ACTORS_EVERY = 2.0
_LONGEST_NAME = 150
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
    reports: list[ReplicaReport] = field(default_factory=list)
    by_replica: dict[str, ReplicaReport] = field(default_factory=dict)
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


def _further(known: ReplicaReport | None, other: ReplicaReport) -> ReplicaReport:
    """The later one of two reports of a replica, which only grow."""
    if known is None or (known.rows, known.written) < (other.rows, other.written):
        return other
    return known


Check = Callable[[Sequence[ReplicaReport], Progress], None]
"""Called with each reading; raises to end the run."""


def run(
    job: Job,
    plan: Plan,
    work: Input | Sequence[WorkItem],
    tracker: Tracker,
    say: Callable[[Phase | Progress], None],
    check: Check,
) -> Ran:
    """Do all rows that are left.

    :param work: what is left; for engine ``ray_data_llm``, chunks of it.
    :param say: told the progress every few seconds.
    :param check: judges each reading.
    :raises RaybatchError: what `check` raises, or that nothing moved for `no_progress_timeout`.
    """
    logging.getLogger("ray.data").setLevel(logging.WARNING)
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    # Ray's own guard sees chunks; during a slow start or long responses none may finish for half an hour.
    # `no_progress_timeout` sees rows, tokens of requests in flight, and engines that load.
    if hasattr(context, "execution_no_progress_timeout_s"):
        context.execution_no_progress_timeout_s = -1
    if not isinstance(work, Input):
        return _run(job, plan, work, None, tracker, say, check)
    with _coordinator(job, plan, work) as board:
        return _run(job, plan, (), board, tracker, say, check)


def _run(
    job: Job,
    plan: Plan,
    chunks: Sequence[WorkItem],
    board: Any,
    tracker: Tracker,
    say: Callable[[Phase | Progress], None],
    check: Check,
) -> Ran:
    ran, errors = Ran(), list[BaseException]()
    actors = None
    if board is not None:
        if plan.spans_nodes or plan.fewest < plan.replicas:
            actors = ReplicaActors(plan)
        stages, take = dataset(job, plan, board, actors), lambda row: None
    else:
        stages = ray_data_llm.dataset(job, plan, chunks)

        def take(row: Any) -> None:
            ran.add(pickle.loads(row["done"]), time.time(), in_one=True)

    watch = _Watch(board, ran)
    stages.set_name(_name(job))  # for people who look at Ray's dashboard
    worker = threading.Thread(target=_consume, args=(stages, take, errors), daemon=True)
    worker.start()
    began = said = looked = time.time()
    try:
        while worker.is_alive() and not watch.is_over:
            worker.join(_POLL)
            ran.reports = watch.look()
            now = time.time()
            progress = tracker.update(ran.reports, ran.flushes, now)
            check(ran.reports, progress)
            if now - said >= _PROGRESS_EVERY and (
                progress.done > progress.resumed or now - said >= _STARTING_EVERY
            ):
                started = progress.done > progress.resumed
                say(progress if started else _starting(ran.reports, plan, now - began))
                said = now
            _check_moving(job, tracker, ran.reports, plan, now)
            if actors is not None and now - looked >= _ACTORS_EVERY:
                actors.end_unused(*ray.get(board.actors.remote(), timeout=60))
                looked = now
        if plan.spans_nodes:
            worker.join(_LAST_WORDS)  # without its placement group, an actor returns no ticket
    except Exception:
        # What is finished is paid for; give replicas the time to write it. It must end before Ray's SIGKILL
        # to a stopped job: killed in its shutdown, the driver would leave replicas behind.
        if board is not None:
            _drain(board, worker)
        raise
    finally:
        if actors is not None:
            actors.close()
    ran.reports = watch.look()
    if not watch.is_finished:
        if errors:
            _raise(errors[0], ran.reports)
        if board is not None:
            raise RaybatchError(
                "Ray ended the replicas before they had done all rows.", FailureClass.INTERNAL
            )
    ran.engine = _engine(job, board)
    say(tracker.update(ran.reports, ran.flushes, time.time()))
    return ran


class _Watch:
    """What the driver knows of its replicas.

    :param board: handle of the coordinator; ``None`` for engine ``ray_data_llm``, which has none.
    """

    def __init__(self, board: Any, ran: Ran) -> None:
        self._board = board
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

    def look(self) -> list[ReplicaReport]:
        """The latest word of each replica, with all that was written since the last look."""
        if self._board is None:
            return list(self._ran.by_replica.values())
        reports, news, is_finished, self._works = ray.get(self._board.news.remote(), timeout=60)
        for at, done in news:
            self._ran.add(done, at)
        if is_finished and self._finished_at is None:
            self._finished_at = time.monotonic()
        latest = dict(self._ran.by_replica)
        for report in reports:
            latest[report.replica] = _further(report, latest.get(report.replica, report))
        return list(latest.values())


def _drain(board: Any, worker: threading.Thread) -> None:
    board.drain.remote()
    ends = time.monotonic() + seconds_to_drain()
    while worker.is_alive() and time.monotonic() < ends:
        worker.join(_POLL)
        with contextlib.suppress(ray.exceptions.RayError):
            reports = ray.get(board.snapshot.remote(), timeout=max(0.0, ends - time.monotonic()))
            if all(report.state != "ready" for report in reports):
                return


@contextlib.contextmanager
def _coordinator(job: Job, plan: Plan, work: Input) -> Iterator[Any]:
    """Beside the driver, so that it is there as long as the driver is, and ends with this run."""
    board = ray.remote(**on_this_node())(Coordinator).remote(work, job.folder, job.part_folder, plan.fewest)
    try:
        yield board
    finally:
        # Replicas that the run no longer waits for end, too, and Ray Data would log that as an error.
        logging.getLogger("ray.data").setLevel(logging.CRITICAL)
        with contextlib.suppress(ray.exceptions.RayError):
            ray.kill(board)


def _starting(reports: Sequence[ReplicaReport], plan: Plan, seconds: float) -> Phase:
    ready = sum(report.state == "ready" for report in reports)
    message = f"{ready} of {plan.number_of_replicas} engines ready after {seconds:.0f} s, no row finished yet"
    return Phase(phase="starting", message=message)


def _raise(error: BaseException, reports: Sequence[ReplicaReport]) -> NoReturn:
    """Raise what ended the run: in a replica's own words, if it could still say them."""
    told = next((report.failure for report in reports if report.failure is not None), None)
    if told is None:
        raise error
    raise RaybatchError(told[1], FailureClass(told[0])) from error


def _name(job: Job) -> str:
    submission = job.spec.submission
    if submission is None:
        return "batch_inference"
    # Ray names a log file after it, and file systems take names of 255 bytes.
    name = f"{submission.task.dag_id}.{submission.task.task_id}"
    return name.encode()[:_LONGEST_NAME].decode(errors="ignore")


def _consume(stages: ray.data.Dataset, take: Callable[[Any], None], errors: list[BaseException]) -> None:
    try:
        for row in stages.iter_rows():
            take(row)
    except BaseException as error:  # handed to the main thread, which diagnoses it
        errors.append(error)


def dataset(job: Job, plan: Plan, board: Any, actors: ReplicaActors | None) -> ray.data.Dataset:
    """The Dataset of tickets, mapped by replicas. Lazy: nothing runs until it is consumed.

    Of a range of replicas, those that find no room are pending: Ray starts them when there is room, and asks
    its autoscaler for it. One that leaves returns its ticket, and at once each ticket that it gets then. So
    soon all are used up, and from then on Ray Data drops the actors that have none.

    :param actors: where replicas may leave, or have their GPUs on several nodes.
    """
    tickets = [{"ticket": number} for number in range(plan.replicas)]
    work = ray.data.from_items(tickets, override_num_blocks=plan.replicas)
    # Without end here: replicas count for themselves how often they die in vain.
    options: dict[str, Any] = {"num_cpus": plan.cpus, "max_restarts": -1, "max_task_retries": -1}
    if actors is not None:
        options["ray_remote_args_fn"] = actors.options()
    if not plan.spans_nodes:
        options["num_gpus"] = plan.gpus
        if plan.accelerator_type:
            options["accelerator_type"] = plan.accelerator_type
    # Ray 2.60 deprecates free-form remote options, but neither 2.56 nor 2.60 has named ones for restarts.
    warnings.filterwarnings("ignore", message="`ray_remote_args(_fn)?` is deprecated")
    return work.map_batches(
        Replica,
        fn_constructor_args=(job, plan, board),
        batch_size=1,
        batch_format="numpy",
        # One ticket each, so that whoever comes late finds one.
        compute=ray.data.ActorPoolStrategy(size=plan.replicas, max_tasks_in_flight_per_actor=1),
        max_concurrency=2,
        **options,
    )


def _engine(job: Job, board: Any) -> EngineInfo:
    if board is None:
        return EngineInfo(effective_sampling=dict(job.spec.sampling))
    return ray.get(board.engine.remote(), timeout=60) or EngineInfo()


def _check_moving(
    job: Job, tracker: Tracker, reports: Sequence[ReplicaReport], plan: Plan, now: float
) -> None:
    longest = job.spec.no_progress_timeout
    if now - tracker.last_change <= longest:
        return
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
        where = f"{starting} of {plan.replicas} replicas are still starting their engine"
    else:
        where = f"{ready} replicas are ready, but no row of theirs finishes and no token comes"
    raise RaybatchError(
        f"no_progress_timeout: nothing moved for {longest:g} s ({where}); raise no_progress_timeout if that "
        "is expected.",
        FailureClass.STALLED,
    )
