# SPDX-License-Identifier: Apache-2.0
"""The job, step by step: check, reuse, claim, generate, publish, store."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import numpy as np

from airflow_provider_raybatch.contract import events, layout
from airflow_provider_raybatch.contract.failures import FailureClass, RaybatchError
from airflow_provider_raybatch.contract.manifest import BatchManifest, Summary
from airflow_provider_raybatch.contract.record import JobRecord
from airflow_provider_raybatch.contract.secrets import Secrets
from airflow_provider_raybatch.contract.shown_uri import without_queries
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.contract.submission import Submission
from airflow_provider_raybatch.contract.text import count_of
from airflow_provider_raybatch.job.control.control import Control
from airflow_provider_raybatch.job.failures.diagnosis import diagnose
from airflow_provider_raybatch.job.failures.public_errors import guarded, guarded_task, public_error
from airflow_provider_raybatch.job.input.survey import ROWS_PER_CHUNK
from airflow_provider_raybatch.job.monitor.budget import Budget, no_price, spent
from airflow_provider_raybatch.job.monitor.claim import ClaimWatch
from airflow_provider_raybatch.job.monitor.money import spent_before
from airflow_provider_raybatch.job.monitor.progress import Tracker
from airflow_provider_raybatch.job.monitor.replica_progress import ReplicaProgress
from airflow_provider_raybatch.job.monitor.served_batch import BatchWatch
from airflow_provider_raybatch.job.monitor.start_up import in_words
from airflow_provider_raybatch.job.output import cleanup
from airflow_provider_raybatch.job.output.commit import commit, prepare
from airflow_provider_raybatch.job.output.dead_letters import failures_of, with_rows_left
from airflow_provider_raybatch.job.output.finished import finished
from airflow_provider_raybatch.job.output.manifest_copy import renew_copy, renew_report_copies
from airflow_provider_raybatch.job.output.openai_batch.unanswered import write_unanswered
from airflow_provider_raybatch.job.output.publish import Target, publish
from airflow_provider_raybatch.job.output.record import records_of
from airflow_provider_raybatch.job.output.report import DatasetReport
from airflow_provider_raybatch.job.output.run_statistics import replica_stats, statistics_of
from airflow_provider_raybatch.job.output.tally import rendered
from airflow_provider_raybatch.job.output.unfinished import Known
from airflow_provider_raybatch.job.parts.ledger import add_up, mark_damaged
from airflow_provider_raybatch.job.parts.reading import DamagedPartError
from airflow_provider_raybatch.job.planning import cluster_view
from airflow_provider_raybatch.job.preflight.ended_batch import make_ready_to_end
from airflow_provider_raybatch.job.preflight.memory_check import cache_differs
from airflow_provider_raybatch.job.preflight.ready import Emit, JobContext, make_ready
from airflow_provider_raybatch.job.request import special_tokens
from airflow_provider_raybatch.job.reuse.asked import asked_again, keep, keep_in_store
from airflow_provider_raybatch.job.reuse.response_store import StoredResponses, remember, remember_committed
from airflow_provider_raybatch.job.reuse.reuse import parts_of_task, plan_reuse
from airflow_provider_raybatch.job.row_order import regroup
from airflow_provider_raybatch.job.row_order.rows_to_do import input_of
from airflow_provider_raybatch.job.run import supervision
from airflow_provider_raybatch.job.run.cpu_tasks import (
    apart_for,
    cut_in_tasks,
    keys_over_the_cluster,
    parallel_map,
)
from airflow_provider_raybatch.job.run.placed_gpus import held_gpus
from airflow_provider_raybatch.job.run.ray_data_llm import dataset as ray_data_llm
from airflow_provider_raybatch.job.run.replicas import Replicas
from airflow_provider_raybatch.job.work import WorkItem, work

T = TypeVar("T")

_PUBLISHERS = 8
_LONGEST_RENDERING = 20.0
"""Seconds for a user's function to make the requests of the report's samples."""


def run(
    spec: BatchInferenceSpec,
    submission: Submission,
    emit: Emit,
    secrets: Secrets | None = None,
    control: Control | None = None,
) -> Summary:
    """Do the job on the Ray cluster that this process is connected to.

    :param secrets: credentials that travelled with the job; by default none.
    :param control: what ends the job early; by default only the spec's deadline.
    :returns: what was committed; emitted before, since the last steps may be slow.
    :raises RaybatchError: one sentence, with the failure class that decides what follows.
    """
    context, control = JobContext(spec, secrets or Secrets(), emit), control or Control(spec, emit)
    context.batch = batch = BatchWatch(spec.served_batch, context.secrets.aws)
    emit(events.Phase(phase="preflight", message="checking source, prompt, model, destination and cluster"))
    try:
        with (
            guarded(spec.shows_rows),
            context.launch,
            context.nodes,
            context.recorder,
            context.start_up.saying(emit),
            batch.looking(),
        ):
            return _steps(context, submission, control)
    except Exception as error:
        with suppress(Exception):  # what ended the job matters more
            _report_failure(context, submission, error)
        raise


def _steps(context: JobContext, submission: Submission, control: Control) -> Summary:
    """All of them in order; for a batch that is over before or meanwhile, those that publish alone."""
    if not context.batch.asks_no_more:
        try:
            return _answer(context, submission, control)
        except Exception as error:
            if not context.batch.is_ended_by(error):
                raise
    return _end_batch(context, submission, control) or _answer(context, submission, control)


def _answer(context: JobContext, submission: Submission, control: Control) -> Summary:
    """Give each row an answer, and publish them."""
    context.batch.check()
    if (committed := make_ready(context, submission)) is not None:
        _found_committed(context, committed)
        remember_committed(context.spec, context.journal.folder, context.secrets.aws, context.emit)
        return committed.summary()
    try:
        context.batch.check()
        _reuse(context)
        if (committed := _claim(context)) is not None:
            _found_committed(context, committed)
            return committed.summary()
        _write_reused(context)
        _generate(context, control)
        manifest = _publish(context, control)
        _store(context)
        context.recorder.end()
        return manifest.summary()
    except Exception as error:
        if context.batch.is_ended_by(error):
            raise
        if isinstance(error, DamagedPartError):
            mark_damaged(context.job.folder, context.job.part_folder.rpartition("/")[0])
        said = error if context.spec.shows_rows else public_error(error)
        failure = with_rows_left(said, context.job, context.source.rows)
        failure_class, sentence = diagnose(failure)
        context.recorder.end(without_queries(sentence), failure_class)
        if failure is error:
            raise
        raise failure from error


def _end_batch(context: JobContext, submission: Submission, control: Control) -> Summary | None:
    """Publish what is finished of a batch that is decided, without an engine.

    :returns: ``None`` where each row of it has had an answer, and one is lost: then the row is asked again.
    """
    _end_replicas(context)
    context.nodes.close()
    if (committed := make_ready_to_end(context, submission)) is not None:
        _found_committed(context, committed)
        return committed.summary()
    if context.recorder.record is None and (committed := _claim(context)) is not None:
        _found_committed(context, committed)
        return committed.summary()
    context.recorder.spent(context.money.own_gpu_seconds)
    try:
        if not _note_unanswered(context):
            return None
        manifest = _publish(context, control)
        renew_report_copies(context.journal.folder, context.journal)
        context.reports.committed(context.journal)
        remember_committed(context.spec, context.journal.folder, context.secrets.aws, context.emit)
        cleanup.collect(context.journal.folder, context.journal)
        context.recorder.end()
        return manifest.summary()
    except Exception as error:
        if isinstance(error, DamagedPartError):
            mark_damaged(context.job.folder, context.job.part_folder.rpartition("/")[0])
        failure_class, sentence = diagnose(error if context.spec.shows_rows else public_error(error))
        context.recorder.end(without_queries(sentence), failure_class)
        raise


def _note_unanswered(context: JobContext) -> bool:
    """Write the rows that have no answer as such, unless the batch is complete by its outcome."""
    job, source, ending = context.job, context.source, context.batch.ending
    done = finished(job, source)
    context.batch.observe(source.rows, done.good, done.failed)
    context.ledger = list(done.parts)
    unanswered = source.rows - done.good - done.failed
    if ending is None:
        return not unanswered
    text = f"the batch is {ending}: {count_of(unanswered, 'line')} of {source.rows:,} without an answer"
    context.emit(events.Notice(message=text))
    context.ledger += write_unanswered(job, source, done.rows, ending)
    return True


def _report_failure(context: JobContext, submission: Submission, error: Exception) -> None:
    """Write the report of a job that fails, unless the destination is another's."""
    failure_class, sentence = diagnose(error)
    if failure_class is FailureClass.SUPERSEDED or not context.may_report:
        return
    job, plan = getattr(context, "job", None), getattr(context, "sizing", None)
    record = context.recorder.record or JobRecord(
        run_token=submission.run_token,
        submission_id=submission.submission_id,
        began=context.start_up.began,
        at=time.time(),
        content=context.spec.shows_rows,
        gpu_hour_price=context.spec.gpu_hour_price or {},
        currency=context.spec.currency if context.spec.gpu_hour_price else None,
    )
    shown = {} if plan is None else plan.shown()
    has_claimed = context.recorder.record is not None
    context.reports.failed(
        context.journal.folder,
        submission.task,
        record.model_copy(update={"failure": without_queries(sentence), "failure_class": failure_class}),
        Known(context.spec, shown, context.versions, replica_stats(context.recorder.reports)),
        context.journal.check if has_claimed else context.journal.check_owner,
        job.part_folder if has_claimed and job is not None else None,
    )


def _found_committed(context: JobContext, manifest: BatchManifest) -> None:
    """Report the dataset of an earlier submission of this run, which may have failed to."""
    renew_copy(context.journal.folder, context.journal)
    renew_report_copies(context.journal.folder, context.journal)
    cleanup.collect_copies(context.journal.folder, context.journal)
    context.emit(events.Committed(summary=manifest.summary(), reused=True))


def _reuse(context: JobContext) -> None:
    """Find the rows that need no request, and size the job for the others."""
    earlier = context.earlier
    # A client has seen which lines have failed: these are answered.
    attempts = context.spec.max_row_attempts if context.spec.served_batch is None else 1
    given_up = earlier.given_up(attempts)
    context.tolerance = replace(context.tolerance, given_up=int(np.count_nonzero(given_up)))
    context.tolerance.during([])
    context.resolved = earlier.good | given_up
    regenerates = context.spec.on_clear == "regenerate" and context.journal.is_cleared()
    store = None if context.store is None or regenerates else StoredResponses(context.store)
    job, source, resolved = context.job, context.source, context.resolved
    reuse = plan_reuse(job, source, earlier, resolved, store, keys_over_the_cluster, context.emit)
    context.reuse = reuse
    if context.refusal is not None:
        context.refusal.unless(earlier.good | reuse.rows)
        context.launch.load(context.model)
    context.remaining = int(np.count_nonzero(~(resolved | reuse.rows)))
    context.sizing = context.launch.plan(context.spec, context.remaining)
    context.start_up.ended("earlier")


def _claim(context: JobContext) -> BatchManifest | None:
    """Wait for nodes, and claim the destination.

    :returns: the dataset, if another submission of this run has published it meanwhile.
    """
    journal = context.journal
    if context.remaining and not context.launch.began:  # early replicas have found room
        context.start_up.begins("nodes")
        began_before, longest = journal.began_before(), context.spec.cluster_wait
        check = context.batch.check
        cluster_view.wait_for(context.sizing, longest, began_before, context.emit, context.nodes, check)
        context.start_up.ended("nodes")
    committed = journal.claim()
    if committed is None:
        context.start_up.ended("claim")
        job, rows = context.job, context.source.rows
        content, start_up, prices = context.spec.shows_rows, context.start_up, context.spec
        context.recorder.begin(
            job.folder, job.part_folder, journal.submission, start_up, rows, content, prices
        )
        context.reports.begin(job.folder, context.spec, journal.submission, job.part_folder)
    return committed


def _write_reused(context: JobContext) -> None:
    """Write the responses that were found, and note what the requests of this run depend on."""
    for notice in _reused(context):
        context.emit(notice)
    keep(context.job, context.asked)
    cached = context.reuse.write_parts(context.job, context.source)
    context.reuse = replace(context.reuse, found=(), search=None)  # frees memory
    reused = add_up(context.job.folder, cached, context.source.rows)
    context.ledger = [*context.earlier.parts, *reused.parts]
    context.kept = context.earlier.rows + reused.rows
    context.resolved |= context.reuse.shared | reused.good
    context.batch.observe(context.source.rows, context.kept, context.tolerance.given_up)
    if (remaining := int(np.count_nonzero(~context.resolved))) != context.remaining:
        # The store's index names them, but their data was gone or unreadable.
        context.remaining, context.sizing = remaining, context.launch.plan(context.spec, remaining)


def _reused(context: JobContext) -> Iterable[events.Notice]:
    """What is reused, and why the other rows are asked."""
    earlier, rows = context.earlier, context.source.rows
    if earlier.damaged:
        damaged = f"parts: {count_of(len(earlier.damaged), 'is', 'are')} damaged"
        example = f"{context.job.folder.uri}/{earlier.damaged[0].path}"
        text = f"{damaged}, and the rows are asked again (for example, {example})"
        yield events.Notice(level="warning", message=text)
    if earlier.rows:
        done = f"done by earlier submissions: {earlier.rows:,} of {count_of(rows, 'row')}"
        rest = "going on with the rest" if earlier.rows < rows else "there is nothing left to ask"
        yield events.Notice(message=f"{done}; {rest}")
    if context.reuse.notice:
        yield events.Notice(message=context.reuse.notice)
    stored = None if context.store is None else context.store.folder
    if context.remaining and (why := asked_again(context.job, earlier, stored, context.asked)) is not None:
        yield events.Notice(message=why)


def _generate(context: JobContext, control: Control) -> None:
    """Let replicas generate the responses that are missing."""
    spec, emit, launch, sizing = context.spec, context.emit, context.launch, context.sizing
    if context.resolved.all():
        _end_replicas(context)
        checks = in_words(context.start_up.phases())
        emit(events.Notice(message=f"no engine was needed; checks took {checks}"))
        return
    emit(events.Phase(phase="starting", message=sizing.sentence(context.remaining)))
    if spec.keep_warm is not None and sizing.spans_nodes:
        emit(events.Notice(level="warning", message="keep_warm has no effect: replicas span nodes"))
    rows = context.source.rows
    tracker = Tracker(rows, rows - context.remaining, time.time(), context.kept, context.money)
    paid = spent(spec, context.job.folder, layout.task_folder(context.journal.submission))
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
    context.batch.check()
    # Rows may have failed after the last check; a poison row must still be reported as one.
    context.tolerance.during(ran.reports)
    if differs := cache_differs(context.checked.kv_cache_tokens, ran.engine.sizes.get("kv_cache_tokens")):
        emit(events.Notice(level="warning", message=differs))
    for text in _prompts(spec, ran.reports):
        emit(events.Notice(message=text))
    context.ledger += ran.parts


def _end_replicas(context: JobContext) -> None:
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
    swaps = job.spec.swaps_adapters
    grouping = regroup.grouping_for(todo, sizing, context.prefix, context.lengths, swaps)
    if grouping is not None:
        context.emit(events.Notice(message=grouping.notice))
        items = work(source, ROWS_PER_CHUNK, resolved)
        todo = regroup.regrouped(job, items, todo, grouping, cut_in_tasks)
    return context.launch.replicas(job, sizing, todo)


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
        budget.check(reports, time.time())
        control.check(progress)
        claim.check()

    return check


def _prompts(spec: BatchInferenceSpec, reports: Sequence[ReplicaProgress]) -> Iterable[str]:
    """What became of prompts, by all replicas."""
    if special := sum(report.special for report in reports):
        yield f"rows with special tokens in their text: {special:,}, {special_tokens.effect(spec)}"
    if truncated := sum(report.truncated for report in reports):
        yield f"prompts cut to the context: {truncated:,}; the column truncated_prompt_tokens has the tokens"


def _publish(context: JobContext, control: Control) -> BatchManifest:
    """Commit all rows, unless too many failed."""
    spec, job, journal, source = context.spec, context.job, context.journal, context.source
    ledger, tolerance = context.ledger, context.tolerance
    context.emit(events.Phase(phase="committing", message="publishing the dataset"))
    ledger += context.reuse.fan_out(job, source, ledger)
    answered = add_up(job.folder, ledger, source.rows)
    if context.batch.ending is None:
        tolerance.after(answered)
        context.batch.observe(source.rows, answered.rows, source.rows - answered.rows)
        context.batch.complete()
    with suppress(RaybatchError):  # an older job may have gone on until it found out about the claim
        records = records_of(job.folder, layout.task_folder(journal.submission), job.part_folder)
        context.money.earlier = spent_before(records, journal.submission.run_token)
    figures = statistics_of(context.ran, context.sizing, context.start_up, context.money)
    versions = {**context.versions, **figures.versions}
    plan = {**figures.plan, **context.checked.shown()}
    figures = replace(figures, digests=context.checked.digests, versions=versions, plan=plan)
    manifest = prepare(
        spec,
        journal,
        ledger,
        source.rows,
        figures,
        source.schema,
        job.part_folder,
        publish_over_the_cluster,
        _report(context),
    )
    if spec.postprocess is not None or spec.response_schema is not None:
        when = (
            "the columns of response_format were made"
            if spec.postprocess is None
            else "postprocess was called"
        )
        describe = partial(failures_of, job.folder, manifest, shows_rows=spec.shows_rows)
        tolerance.while_published(manifest.counts.error, when, describe)
    with control.uninterrupted():
        commit(journal, manifest)
        context.emit(events.Committed(summary=manifest.summary()))
    return manifest


def _report(context: JobContext) -> DatasetReport:
    """What writes the report of the dataset."""
    spec, record = context.spec, context.recorder.record
    render = partial(apart_for, _LONGEST_RENDERING, rendered, task=context.job.task)
    return DatasetReport(
        context.journal.folder,
        spec,
        [] if record is None else record.course,
        context.reports.attempts(),
        context.emit,
        None if spec.prompt_function is None else render,
    )


def _store(context: JobContext) -> None:
    """Keep the responses for other runs. After the commit: a slow or failing store can't cost the dataset."""
    renew_report_copies(context.journal.folder, context.journal)
    context.reports.committed(context.journal)
    if context.store is not None:
        context.emit(events.Phase(phase="storing", message="adding new responses to the response store"))
        job = context.job
        remember(context.store, job.folder, parts_of_task(job), context.emit, job.task)
        keep_in_store(context.store.folder, job, context.asked)
    cleanup.collect(context.journal.folder, context.journal)


def publish_over_the_cluster(function: Callable[..., T], found: Sequence[Any], target: Target) -> Iterable[T]:
    """See :data:`~airflow_provider_raybatch.job.work.ParallelMap`."""
    notes = None if function is publish else target.postprocess
    guarded = guarded_task(function, target.task.spec.shows_rows)
    return parallel_map(guarded, found, target, _PUBLISHERS, postprocess=notes.function if notes else None)
