# SPDX-License-Identifier: Apache-2.0
"""The job, phase by phase: check, reuse, claim, generate, publish and store, clean up."""

from __future__ import annotations

import time
from contextlib import suppress

from airflow_provider_raybatch.contract import events
from airflow_provider_raybatch.contract.failures import FailureClass, RaybatchError
from airflow_provider_raybatch.contract.manifest import BatchManifest, Summary
from airflow_provider_raybatch.contract.secrets import Secrets
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.contract.submission import Submission
from airflow_provider_raybatch.contract.text import count_of, without_queries
from airflow_provider_raybatch.job.control.control import Control
from airflow_provider_raybatch.job.failures.diagnosis import diagnose
from airflow_provider_raybatch.job.failures.public_errors import guarded, public_error
from airflow_provider_raybatch.job.monitor.served_batch import BatchWatch
from airflow_provider_raybatch.job.output.dead_letters import with_rows_left
from airflow_provider_raybatch.job.output.manifest_copy import renew_copy, renew_report_copies
from airflow_provider_raybatch.job.output.openai_batch.unanswered import finished, write_unanswered
from airflow_provider_raybatch.job.output.record import new_record
from airflow_provider_raybatch.job.output.run_statistics import replica_stats
from airflow_provider_raybatch.job.output.unfinished import Known
from airflow_provider_raybatch.job.parts.ledger import mark_damaged
from airflow_provider_raybatch.job.parts.reading import DamagedPartError
from airflow_provider_raybatch.job.phases.generating import end_replicas, generate
from airflow_provider_raybatch.job.phases.publishing import clean_up, publish_rows
from airflow_provider_raybatch.job.phases.reusing import claim, find_answers, write_found
from airflow_provider_raybatch.job.preflight.ended_batch import make_ready_to_end
from airflow_provider_raybatch.job.preflight.engine_check import Emit
from airflow_provider_raybatch.job.preflight.ready import JobContext, make_ready


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
        return _found_committed(context, committed)
    try:
        context.batch.check()
        find_answers(context)
        if (committed := claim(context)) is not None:
            return _found_committed(context, committed)
        write_found(context)
        generate(context, control)
        return _publish(context, control)
    except Exception as error:
        if context.batch.is_ended_by(error, lambda: _is_answered(context)):
            raise
        if isinstance(error, DamagedPartError):
            for step in context.job.steps:
                mark_damaged(step.folder, step.run_folder)
        said = error if context.spec.shows_rows else public_error(error)
        failure = with_rows_left(said, context.job, context.source.rows)
        failure_class, sentence = diagnose(failure)
        context.recorder.end(without_queries(sentence), failure_class)
        if failure is error:
            raise
        raise failure from error


def _publish(context: JobContext, control: Control) -> Summary:
    """Publish what is finished, and clean up."""
    manifest = publish_rows(context, control)
    clean_up(context)
    context.recorder.end()
    return manifest.summary()


def _is_answered(context: JobContext) -> bool:
    """Whether each row has an answer; not where the parts can't tell it now."""
    try:
        return bool(finished(context.job, context.source).rows.all())
    except RaybatchError:
        return False


def _end_batch(context: JobContext, submission: Submission, control: Control) -> Summary | None:
    """Publish what is finished of a batch that is decided, without an engine.

    :returns: ``None`` where each row of it has had an answer, and one is lost: then the row is asked again.
    """
    end_replicas(context)
    context.nodes.close()
    if (committed := make_ready_to_end(context, submission)) is not None:
        return _found_committed(context, committed)
    if context.recorder.record is None and (committed := claim(context)) is not None:
        return _found_committed(context, committed)
    context.recorder.spent(context.money.own_gpu_seconds)
    try:
        if not _note_unanswered(context):
            return None
        return _publish(context, control)
    except Exception as error:
        if isinstance(error, DamagedPartError):
            for step in context.job.steps:
                mark_damaged(step.folder, step.run_folder)
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
    for error in context.batch.errors:
        context.emit(events.Notice(level="warning", message=error.message))
    text = f"the batch ends as {ending}: {count_of(unanswered, 'line')} of {source.rows:,} without an answer"
    context.emit(events.Notice(message=text))
    context.ledger += write_unanswered(job, source, done.rows, ending)
    return True


def _report_failure(context: JobContext, submission: Submission, error: Exception) -> None:
    """Write the report of a job that fails, unless the destination is another's."""
    failure_class, sentence = diagnose(error)
    if failure_class is FailureClass.SUPERSEDED or not context.may_report:
        return
    job, plan = getattr(context, "job", None), getattr(context, "sizing", None)
    shown = {} if plan is None else plan.shown()
    has_claimed = context.recorder.record is not None
    record = context.recorder.record or new_record(context.spec, submission, context.start_up.began)
    known = {"at": time.time(), "failure": without_queries(sentence), "failure_class": failure_class}
    context.reports.failed(
        context.journal.folder,
        submission.task,
        record.model_copy(update=known),
        Known(context.spec, shown, context.versions, replica_stats(context.recorder.reports)),
        context.journal.check if has_claimed else context.journal.check_owner,
        job.part_folder if has_claimed and job is not None else None,
    )


def _found_committed(context: JobContext, manifest: BatchManifest) -> Summary:
    """Report the dataset of an earlier submission of this run, which may have failed to."""
    renew_copy(context.journal.folder, context.journal)
    renew_report_copies(context.journal.folder, context.journal)
    context.emit(events.Committed(summary=manifest.summary(), reused=True))
    return manifest.summary()
