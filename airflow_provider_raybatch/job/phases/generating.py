# SPDX-License-Identifier: Apache-2.0
"""Rows that need requests: replicas make their responses, within the limits of the job."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace

from airflow_provider_raybatch.contract import events, layout
from airflow_provider_raybatch.contract.failures import RaybatchError
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.job.control.control import Control
from airflow_provider_raybatch.job.input.survey import ROWS_PER_CHUNK
from airflow_provider_raybatch.job.monitor.budget import Budget, no_price, spent
from airflow_provider_raybatch.job.monitor.claim import ClaimWatch
from airflow_provider_raybatch.job.monitor.money import HeldGpus
from airflow_provider_raybatch.job.monitor.progress import Tracker
from airflow_provider_raybatch.job.monitor.replica_progress import ReplicaProgress
from airflow_provider_raybatch.job.monitor.start_up import in_words
from airflow_provider_raybatch.job.planning.cluster_view import GpuTypes
from airflow_provider_raybatch.job.planning.plan import Plan
from airflow_provider_raybatch.job.preflight.memory_check import cache_differs
from airflow_provider_raybatch.job.preflight.ready import JobContext
from airflow_provider_raybatch.job.request import special_tokens
from airflow_provider_raybatch.job.reuse.reuse import earlier_answers
from airflow_provider_raybatch.job.row_order import regroup
from airflow_provider_raybatch.job.row_order.rows_to_do import input_of
from airflow_provider_raybatch.job.run import supervision
from airflow_provider_raybatch.job.run.cpu_tasks import cut_in_tasks
from airflow_provider_raybatch.job.run.launch import Launch
from airflow_provider_raybatch.job.run.ray_data_llm import dataset as ray_data_llm
from airflow_provider_raybatch.job.run.replicas import Replicas
from airflow_provider_raybatch.job.work import WorkItem, work
from airflow_provider_raybatch.storage.errors import StorageError


def generate(context: JobContext, control: Control) -> None:
    """Let replicas generate the responses that are missing."""
    spec, emit, launch, sizing = context.spec, context.emit, context.launch, context.sizing
    if context.resolved.all():
        end_replicas(context)
        checks = in_words(context.start_up.phases())
        emit(events.Notice(message=f"no engine was needed; checks took {checks}"))
        return
    emit(events.Phase(phase="starting", message=sizing.sentence(context.remaining)))
    if spec.keep_warm is not None and sizing.spans_nodes:
        emit(events.Notice(level="warning", message="keep_warm has no effect: replicas span nodes"))
    rows = context.source.rows
    answered = _answered(context)
    tracker = Tracker(rows, rows - context.remaining, time.time(), context.kept, context.money, answered)
    task_folder = layout.task_folder(context.journal.submission)
    paid = spent(spec, context.job.folder, task_folder, context.records)
    budget = Budget(spec, paid, context.money)
    claim = ClaimWatch(context.journal.check)
    todo = _rows_to_do(context)
    context.money.held = held_gpus(spec, sizing, launch)
    check = _limits(context, budget, control, claim)
    with control.draining(), claim.looking():
        try:
            context.ran = ran = supervision.run(context.job, sizing, todo, tracker, emit, check)
        finally:
            launch.end()
            _count_gpus(context)
    context.recorder.generated(ran.reports)
    context.batch.check()
    # Rows may have failed after the last check; a poison row must still be reported as one.
    context.tolerance.during(ran.reports)
    if differs := cache_differs(context.checked.kv_cache_tokens, ran.engine.sizes.get("kv_cache_tokens")):
        emit(events.Notice(level="warning", message=differs))
    for text in _prompts(spec, ran.reports):
        emit(events.Notice(message=text))
    context.ledger += ran.parts


def _answered(context: JobContext) -> dict[str, int]:
    """The answers that each step before the last one has already."""
    job = context.job
    found = zip(job.earlier_steps, context.earlier_steps, job.answers, strict=True)
    return {
        step.spec.step_name: ledger.rows
        + sum(one.ok for one in parts if one.path.startswith(f"{step.part_folder}/"))
        for step, ledger, parts in found
    }


def end_replicas(context: JobContext) -> None:
    """End replicas that have started and turned out not to be needed, and count their GPUs."""
    launch = context.launch
    if launch.began:
        sizing = context.sizing if hasattr(context, "sizing") else launch.plan(context.spec, 1)
        if sizing.gpus:
            context.money.held = held_gpus(context.spec, sizing, launch)
            with suppress(Exception):  # they are not needed, and may have died
                context.money.held.look(launch.reports(), time.time())
        launch.end()
        _count_gpus(context)


def held_gpus(spec: BatchInferenceSpec, sizing: Plan, launch: Launch) -> HeldGpus:
    """Begin to count the GPUs that replicas hold, by the types of nodes; also of replicas that start now."""
    type_of, unseen = GpuTypes(spec.accelerator_type, spec.gpu_hour_price or ()), {}
    if spec.engine == ray_data_llm.NAME and sizing.gpus:
        types = type_of.look()
        kind = types.pop() if len(types) == 1 else spec.accelerator_type or ""
        unseen = {kind: sizing.gpus * sizing.replicas}
    return HeldGpus(sizing.gpus, launch.began or time.time(), type_of, unseen, launch.at_once)


def _count_gpus(context: JobContext) -> None:
    """Count what replicas have held until now, when they are gone."""
    money = context.money
    if money.held is not None:
        money.held.end(time.time())
    context.recorder.spent(money.own_gpu_seconds)
    for kind in money.without_price:
        text = f"{no_price(kind, money.prices)}, so the cost of this run is not known"
        context.emit(events.Notice(level="warning", message=text))


def _rows_to_do(context: JobContext) -> Replicas | Sequence[WorkItem]:
    """The rows without a response: in the order of the input, or brought together where that pays."""
    job, source, sizing, resolved = context.job, context.source, context.sizing, context.resolved
    if job.spec.engine == ray_data_llm.NAME:
        return work(source, sizing.rows_per_chunk, resolved, context.reuse.repetitions)
    todo = input_of(source, resolved, context.reuse.repetitions)
    earlier = None
    if job.spec.deduplicate and job.earlier_steps:  # those to first steps were looked for
        store = None if context.stored is None else context.store
        earlier = earlier_answers(job, context.earlier.files, store)
    swaps = job.steps[0].spec.swaps_adapters
    grouping = regroup.grouping_for(todo, sizing, context.prefix, context.lengths, swaps)
    if grouping is not None:
        context.emit(events.Notice(message=grouping.notice))
        items = work(source, ROWS_PER_CHUNK, resolved)
        todo = regroup.regrouped(job, items, todo, grouping, cut_in_tasks)
    return context.launch.replicas(job, sizing, replace(todo, earlier=earlier))


def _limits(context: JobContext, budget: Budget, control: Control, claim: ClaimWatch) -> supervision.Check:
    """What ends the run early; it also says when the first request was made."""
    has_begun = False

    def check(reports: Sequence[ReplicaProgress], progress: events.Progress) -> None:
        nonlocal has_begun
        if not has_begun and any(one.first_request for one in reports):
            has_begun = True
            context.nodes.close()
            phases = in_words(context.start_up.phases(reports))
            context.emit(events.Notice(message=f"first request after {phases}"))
        context.recorder.observe(reports, progress, context.money.own_gpu_seconds)
        failed = context.tolerance.given_up + progress.errors
        context.batch.observe(context.source.rows, progress.kept or 0, failed)
        context.batch.check()
        context.tolerance.during(reports)
        try:
            budget.check(reports, time.time())
        except RaybatchError:
            with suppress(StorageError):
                context.journal.check()  # a driver that was frozen decides no limit for its successor
            raise
        control.check(progress)
        claim.check()

    return check


def _prompts(spec: BatchInferenceSpec, reports: Sequence[ReplicaProgress]) -> Iterable[str]:
    """What became of prompts, by all replicas."""
    if special := sum(report.special for report in reports):
        yield f"rows with special tokens in their text: {special:,}, {special_tokens.effect(spec)}"
    if truncated := sum(report.truncated for report in reports):
        yield f"prompts cut to the context: {truncated:,}; the column truncated_prompt_tokens has the tokens"
