# SPDX-License-Identifier: Apache-2.0
"""Rows that need requests: replicas make their responses, within the limits of the job."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace

from airflow_provider_raybatch.contract import events, layout
from airflow_provider_raybatch.contract.failures import FailureClass, RaybatchError
from airflow_provider_raybatch.contract.run_numbers import JobRecord
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.job.control.control import Control
from airflow_provider_raybatch.job.input.survey import ROWS_PER_CHUNK
from airflow_provider_raybatch.job.monitor.budgets import Budget, Tolerance, no_price
from airflow_provider_raybatch.job.monitor.money import HeldGpus
from airflow_provider_raybatch.job.monitor.progress import Tracker
from airflow_provider_raybatch.job.monitor.replica_progress import ReplicaProgress
from airflow_provider_raybatch.job.monitor.start_up import in_words
from airflow_provider_raybatch.job.parts.ledger import spent
from airflow_provider_raybatch.job.phases.reusing import KeptAnswers
from airflow_provider_raybatch.job.planning.cluster_view import GpuTypes
from airflow_provider_raybatch.job.planning.plan import Plan
from airflow_provider_raybatch.job.preflight.checked_job import CheckedJob, Services
from airflow_provider_raybatch.job.request import row_text
from airflow_provider_raybatch.job.reuse.reuse import earlier_answers
from airflow_provider_raybatch.job.row_order import rows_to_do
from airflow_provider_raybatch.job.row_order.rows_to_do import input_of
from airflow_provider_raybatch.job.run import supervision
from airflow_provider_raybatch.job.run.cpu_tasks import cut_in_tasks
from airflow_provider_raybatch.job.run.launch import Launch
from airflow_provider_raybatch.job.run.ray_data_llm import dataset as ray_data_llm
from airflow_provider_raybatch.job.run.replicas import Replicas
from airflow_provider_raybatch.job.work import Job, Ran, WorkItem, work
from airflow_provider_raybatch.storage.errors import StorageError

CLAIM_INTERVAL = 60.0
"""Seconds between two checks. Each lists the journal."""


class ClaimWatch:
    """Checks once a minute, not only at the commit, that the destination is still this job's.

    A driver that was frozen, or cut off from Airflow, may go on after another submission has claimed the
    destination. What it pays for from then on is lost.

    :param look: raises a :class:`RaybatchError` of class ``SUPERSEDED`` when another submission has claimed
        the destination. Other errors are left to the commit.
    """

    def __init__(self, look: Callable[[], None], interval: float = CLAIM_INTERVAL) -> None:
        self._look = look
        self._interval = interval
        self._ended = threading.Event()
        self._lost: RaybatchError | None = None

    @contextmanager
    def looking(self) -> Iterator[None]:
        """Check in a separate thread: a slow store must not delay the job's deadline."""
        threading.Thread(target=self._run, name="raybatch-claim", daemon=True).start()
        try:
            yield
        finally:
            self._ended.set()

    def check(self) -> None:
        """:raises RaybatchError: a check has found that the claim is lost."""
        if self._lost is not None:
            raise self._lost

    def _run(self) -> None:
        while True:
            try:
                self._look()
            except RaybatchError as error:
                if error.failure_class is FailureClass.SUPERSEDED:
                    self._lost = error
                    return
            if self._ended.wait(self._interval):
                return


def generate(
    services: Services,
    control: Control,
    records: Iterable[JobRecord],
    checked: CheckedJob,
    kept: KeptAnswers,
    plan: Plan,
) -> Ran | None:
    """Let replicas generate the responses that are missing.

    :param records: of all earlier jobs of the task.
    :returns: what the replicas did; ``None`` if no response is missing.
    """
    spec, emit, money, remaining = checked.surveyed.spec, services.emit, services.money, kept.remaining
    if not remaining:
        end_replicas(services, spec, plan)
        checks = in_words(services.start_up.phases())
        emit(events.Notice(message=f"no engine was needed; checks took {checks}"))
        return None
    emit(events.Phase(phase="starting", message=plan.sentence(remaining)))
    if spec.keep_warm is not None and plan.spans_nodes:
        emit(events.Notice(level="warning", message="keep_warm has no effect: replicas span nodes"))
    rows = checked.surveyed.source.rows
    tracker = Tracker(rows, rows - remaining, time.time(), kept.rows, money, _answered(checked, kept.job))
    task_folder = layout.task_folder(services.journal.submission)
    budget = Budget(spec, spent(spec, kept.job.folder, task_folder, records), money)
    claim = ClaimWatch(services.journal.check)
    todo = _rows_to_do(services, checked, kept, plan)
    money.holds(held_gpus(spec, plan, services.launch))
    check = _limits(services, rows, kept.tolerance, budget, control, claim)
    with control.draining(), claim.looking():
        try:
            return supervision.run(kept.job, plan, todo, tracker, emit, check)
        finally:
            services.launch.end()
            _count_gpus(services)


def check_generated(services: Services, checked: CheckedJob, tolerance: Tolerance, ran: Ran) -> None:
    """Check what the replicas have done, and say what users should know of it."""
    services.recorder.generated(ran.reports)
    services.batch.check()
    # Rows may have failed after the last check; a poison row must still be reported as one.
    tolerance.during(ran.reports)
    for text in _prompts(checked.surveyed.spec, ran.reports):
        services.emit(events.Notice(message=text))


def _answered(checked: CheckedJob, job: Job) -> dict[str, int]:
    """The answers that each step before the last one has already.

    :param job: with the parts of these steps.
    """
    return {
        step.spec.step_name: ledger.rows
        + sum(one.ok for one in parts if one.path.startswith(f"{step.part_folder}/"))
        for step, ledger, parts in zip(job.before, checked.before, job.answers, strict=True)
    }


def end_replicas(services: Services, spec: BatchInferenceSpec, plan: Plan | None) -> None:
    """End replicas that have started and turned out not to be needed, and count their GPUs.

    :param plan: ``None`` if the rows to do were not known yet.
    """
    launch, money = services.launch, services.money
    if launch.began:
        plan = plan or launch.plan(spec, 1)
        if plan.gpus:
            held = held_gpus(spec, plan, launch)
            money.holds(held)
            with suppress(Exception):  # they are not needed, and may have died
                held.look(launch.reports(), time.time())
        launch.end()
        _count_gpus(services)


def held_gpus(spec: BatchInferenceSpec, sizing: Plan, launch: Launch) -> HeldGpus:
    """Begin to count the GPUs that replicas hold, by the types of nodes; also of replicas that start now."""
    type_of, unseen = GpuTypes(spec.accelerator_type, spec.gpu_hour_price or ()), {}
    if spec.engine == ray_data_llm.NAME and sizing.gpus:
        types = type_of.look()
        kind = types.pop() if len(types) == 1 else spec.accelerator_type or ""
        unseen = {kind: sizing.gpus * sizing.replicas}
    return HeldGpus(sizing.gpus, launch.began or time.time(), type_of, unseen, launch.at_once)


def _count_gpus(services: Services) -> None:
    """Count what replicas have held until now, when they are gone."""
    money = services.money
    if money.held is not None:
        money.held.end(time.time())
    services.recorder.spent(money.own_gpu_seconds)
    for kind in money.without_price:
        text = f"{no_price(kind, money.prices)}, so the cost of this run is not known"
        services.emit(events.Notice(level="warning", message=text))


def _rows_to_do(
    services: Services, checked: CheckedJob, kept: KeptAnswers, plan: Plan
) -> Replicas | Sequence[WorkItem]:
    """The rows without a response: in the order of the input, or brought together where that pays."""
    job, surveyed, source, resolved = kept.job, checked.surveyed, checked.surveyed.source, kept.resolved
    if job.spec.engine == ray_data_llm.NAME:
        return work(source, plan.rows_per_chunk, resolved, kept.repetitions)
    todo = input_of(source, resolved, kept.repetitions)
    earlier = None
    if job.spec.deduplicate and job.before:  # those to first steps were looked for
        earlier = earlier_answers(job, checked.earlier.files, kept.store)
    swaps = job.first.spec.swaps_adapters
    grouping = rows_to_do.grouping_for(todo, plan, surveyed.prefix, surveyed.lengths, swaps)
    if grouping is not None:
        services.emit(events.Notice(message=grouping.notice))
        items = work(source, ROWS_PER_CHUNK, resolved)
        todo = rows_to_do.regrouped(job, items, todo, grouping, cut_in_tasks)
    return services.launch.replicas(job, plan, replace(todo, earlier=earlier))


def _limits(
    services: Services, rows: int, tolerance: Tolerance, budget: Budget, control: Control, claim: ClaimWatch
) -> supervision.Check:
    """What ends the run early; it also says when the first request was made.

    :param rows: of the input.
    """
    has_begun, batch = False, services.batch

    def check(reports: Sequence[ReplicaProgress], progress: events.Progress) -> None:
        nonlocal has_begun
        if not has_begun and any(one.first_request for one in reports):
            has_begun = True
            services.nodes.close()
            phases = in_words(services.start_up.phases(reports))
            services.emit(events.Notice(message=f"first request after {phases}"))
        services.recorder.observe(reports, progress, services.money.own_gpu_seconds)
        batch.observe(rows, progress.kept or 0, tolerance.given_up + progress.errors)
        batch.check()
        tolerance.during(reports)
        try:
            budget.check(reports, time.time())
        except RaybatchError:
            with suppress(StorageError):
                services.journal.check()  # a driver that was frozen decides no limit for its successor
            raise
        control.check(progress)
        claim.check()

    return check


def _prompts(spec: BatchInferenceSpec, reports: Sequence[ReplicaProgress]) -> Iterable[str]:
    """What became of prompts, by all replicas."""
    if special := sum(report.special for report in reports):
        yield f"rows with special tokens in their text: {special:,}, {row_text.special_tokens_effect(spec)}"
    if truncated := sum(report.truncated for report in reports):
        yield f"prompts cut to the context: {truncated:,}; the column truncated_prompt_tokens has the tokens"
