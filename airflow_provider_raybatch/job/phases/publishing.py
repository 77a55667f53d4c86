# SPDX-License-Identifier: Apache-2.0
"""What is finished becomes a dataset, and its responses are kept for other runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from threading import Thread
from typing import Any, TypeVar

from airflow_provider_raybatch.contract import events, layout
from airflow_provider_raybatch.contract.failures import RaybatchError
from airflow_provider_raybatch.contract.manifest import BatchManifest
from airflow_provider_raybatch.contract.text import count_of
from airflow_provider_raybatch.job.control.control import Control
from airflow_provider_raybatch.job.failures.public_errors import guarded_task
from airflow_provider_raybatch.job.monitor.money import spent_before
from airflow_provider_raybatch.job.output import cleanup
from airflow_provider_raybatch.job.output.commit import commit, prepare
from airflow_provider_raybatch.job.output.dead_letters import failures_of
from airflow_provider_raybatch.job.output.manifest_copy import renew_report_copies
from airflow_provider_raybatch.job.output.publish import Target, publish
from airflow_provider_raybatch.job.output.record import records_of
from airflow_provider_raybatch.job.output.report import DatasetReport
from airflow_provider_raybatch.job.output.run_statistics import statistics_of
from airflow_provider_raybatch.job.output.tally import rendered
from airflow_provider_raybatch.job.parts.ledger import add_up
from airflow_provider_raybatch.job.preflight.ready import JobContext
from airflow_provider_raybatch.job.reuse.asked import keep_in_store
from airflow_provider_raybatch.job.reuse.response_store import not_stored, open_store, remember
from airflow_provider_raybatch.job.reuse.reuse import parts_of_steps
from airflow_provider_raybatch.job.run.cpu_tasks import apart_for, parallel_map
from airflow_provider_raybatch.job.steps.columns import with_steps
from airflow_provider_raybatch.job.steps.known import StepParts

T = TypeVar("T")

_LOOK = 0.2
_TOO_LATE = "the job has no time left, so the response store lacks new responses; raise the task's timeout."
_PUBLISHERS = 8
_LONGEST_RENDERING = 20.0
"""Seconds for a user's function to make the requests of the report's samples."""


def publish_rows(context: JobContext, control: Control) -> BatchManifest:
    """Commit all rows, unless too many failed."""
    job, journal, source = context.job, context.journal, context.source
    spec, schema = context.spec.step_specs()[-1], with_steps(source.schema, job)
    ledger, tolerance = context.ledger, context.tolerance
    context.emit(events.Phase(phase="committing", message="publishing the dataset"))
    answered = add_up(job.folder, ledger, source.rows)
    if context.batch.ending is None:
        tolerance.after(answered)
        context.batch.observe(source.rows, answered.rows, source.rows - answered.rows)
        context.batch.complete()
    records, run_token = context.records, journal.submission.run_token
    with suppress(RaybatchError):  # an older job may have gone on until it found out about the claim
        records = records_of(job.folder, layout.task_folder(journal.submission), job.part_folder)
        context.money.earlier = spent_before(records, run_token)
    records = [record for record in records if record.run_token == run_token]
    figures = statistics_of(context.ran, context.sizing, context.start_up, context.money)
    versions = {**context.versions, **figures.versions}
    plan = {**figures.plan, **context.checked.shown()}
    figures = figures.model_copy(
        update={"digests": context.checked.digests, "versions": versions, "plan": plan}
    )
    with _storing(context, control):
        manifest = prepare(
            spec,
            journal,
            ledger,
            source.rows,
            figures,
            schema,
            job.part_folder,
            publish_over_the_cluster,
            _report(context),
            [*records, *filter(None, [context.recorder.record])],
            _answers(context),
        )
    if spec.postprocess is not None or spec.response_schema is not None:
        when = (
            "the columns of response_format were made"
            if spec.postprocess is None
            else "postprocess was called"
        )
        describe = partial(failures_of, job.folder, manifest, shows_rows=spec.shows_rows)
        tolerance.while_published(manifest.counts.error, when, describe)
    if blank := manifest.counts.blank:
        fate = {"ask": "are asked all the same", "null": "are delivered without an answer"}
        text = f"{count_of(blank, 'row has', 'rows have')} only blank text for the prompt, and "
        context.emit(events.Notice(message=f"on_blank: {text}{fate.get(spec.on_blank, 'fail')}."))
    with control.uninterrupted():
        commit(journal, manifest)
        context.emit(events.Committed(summary=manifest.summary()))
    return manifest


def _answers(context: JobContext) -> list[StepParts]:
    """The parts of each step before the last one."""
    found = [list(parts) for parts in context.job.answers]
    for number, part in context.ran.answers:
        found[number].append(part)
    run = context.journal.submission.run_id
    return [
        StepParts(step.task, parts, step.part_folder, run)
        for parts, step in zip(found, context.job.earlier_steps, strict=True)
    ]


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


@contextmanager
def _storing(context: JobContext, control: Control) -> Iterator[None]:
    """Keep the responses for other runs meanwhile: what is committed is paid for by none of them.

    Where that fails, or takes longer than the job may, a warning says so; the dataset matters more.
    """
    if context.spec.reuse is None:
        yield
        return
    said: list[events.Notice] = []
    # A daemon, so that a store without an answer holds up neither a stop nor the end.
    storing = Thread(target=_store, args=(context, said.append), name="raybatch-storing", daemon=True)
    storing.start()
    try:
        yield
        while storing.is_alive() and not control.is_late:
            storing.join(_LOOK)
        if storing.is_alive():
            context.emit(events.Notice(level="warning", message=f"reuse: {_TOO_LATE}"))
    finally:
        for notice in [*said]:
            context.emit(notice)


def _store(context: JobContext, emit: Callable[[events.Notice], None]) -> None:
    job = context.job
    try:
        store = open_store(context.spec, context.secrets.aws, emit)
        assert store is not None  # the job has one
        for step, parts in parts_of_steps(job):
            remember(store, job.folder, parts, emit, step.task)
        if hasattr(context, "asked"):
            keep_in_store(store.folder, job, context.asked)
    except Exception as error:
        emit(events.Notice(level="warning", message=not_stored(error, context.spec.shows_rows)))


def clean_up(context: JobContext) -> None:
    """What can't cost the dataset any more: copies of reports, and left-overs."""
    renew_report_copies(context.journal.folder, context.journal)
    context.reports.committed(context.journal)
    cleanup.collect(context.journal.folder, context.journal)


def publish_over_the_cluster(function: Callable[..., T], found: Sequence[Any], target: Target) -> Iterable[T]:
    """See :data:`~airflow_provider_raybatch.job.work.ParallelMap`."""
    notes = None if function is publish else target.postprocess
    guarded = guarded_task(function, target.task.spec.shows_rows)
    return parallel_map(guarded, found, target, _PUBLISHERS, postprocess=notes.function if notes else None)
