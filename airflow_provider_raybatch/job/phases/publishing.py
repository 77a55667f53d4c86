# SPDX-License-Identifier: Apache-2.0
"""What is finished becomes a dataset, and its responses are kept for other runs.

A batch of the Batch API that is over is published without model or GPUs, whatever checks would find.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from threading import Thread
from typing import Any, TypeVar

from airflow_provider_raybatch.contract import events, layout
from airflow_provider_raybatch.contract.failures import RaybatchError
from airflow_provider_raybatch.contract.manifest import BatchManifest, Digests, RunStatistics
from airflow_provider_raybatch.contract.run_numbers import JobRecord
from airflow_provider_raybatch.contract.secrets import AwsCredentials
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.contract.text import count_of
from airflow_provider_raybatch.job.control.control import Control
from airflow_provider_raybatch.job.failures.public_reasons import guarded_task
from airflow_provider_raybatch.job.input.survey import Source
from airflow_provider_raybatch.job.monitor.budgets import Tolerance
from airflow_provider_raybatch.job.monitor.served_batch import BatchWatch
from airflow_provider_raybatch.job.output import after_commit
from airflow_provider_raybatch.job.output.after_commit import renew_report_copies
from airflow_provider_raybatch.job.output.commit import commit, prepare
from airflow_provider_raybatch.job.output.dead_letters import failures_of
from airflow_provider_raybatch.job.output.openai_batch.unanswered import finished, write_unanswered
from airflow_provider_raybatch.job.output.publish import Target, publish
from airflow_provider_raybatch.job.output.record import listed_records, records_of
from airflow_provider_raybatch.job.output.report import DatasetReport, statistics_of
from airflow_provider_raybatch.job.output.tally import rendered
from airflow_provider_raybatch.job.parts.ledger import add_up
from airflow_provider_raybatch.job.parts.part import Part, listed
from airflow_provider_raybatch.job.planning import cluster_view
from airflow_provider_raybatch.job.planning.plan import Plan
from airflow_provider_raybatch.job.preflight.check import Facts
from airflow_provider_raybatch.job.preflight.checked_job import (
    CheckedEngine,
    Services,
    checked_job,
    with_time,
)
from airflow_provider_raybatch.job.preflight.input_check import read_source
from airflow_provider_raybatch.job.preflight.model_check import ModelCheck
from airflow_provider_raybatch.job.reuse.asked import Asked, keep_in_store
from airflow_provider_raybatch.job.reuse.response_store import not_stored, open_store, remember
from airflow_provider_raybatch.job.reuse.reuse import parts_of_steps
from airflow_provider_raybatch.job.run.cpu_tasks import apart_for, parallel_map
from airflow_provider_raybatch.job.steps.columns import with_steps
from airflow_provider_raybatch.job.steps.known import StepParts
from airflow_provider_raybatch.job.work import Job, Ran

T = TypeVar("T")

_LOOK = 0.2
_TOO_LATE = "the job has no time left, so the response store lacks new responses; raise the task's timeout."
_PUBLISHERS = 8
_SMALL_BYTES = 4 * 2**20
"""Of a range's parts, which the driver may hold decoded."""
_LONGEST_RENDERING = 20.0
"""Seconds for a user's function to make the requests of the report's samples."""


@dataclass(frozen=True)
class Publication:
    """A job whose rows become a dataset.

    :param spec: as it was submitted, with the schema of its Pydantic model.
    :param check: of the model.
    :param job: with the parts that its earlier steps had before replicas began.
    :param tolerance: how many rows may have failed.
    """

    spec: BatchInferenceSpec
    source: Source
    check: ModelCheck
    job: Job
    plan: Plan
    tolerance: Tolerance


def publish_rows(
    services: Services,
    control: Control,
    made: Publication,
    parts: Sequence[Part],
    ran: Ran,
    asked: Asked | None,
    records: Sequence[JobRecord],
) -> BatchManifest:
    """Commit all rows, unless too many failed.

    :param parts: with all rows.
    :param asked: what the requests depend on; ``None`` for a batch that ended before that was known.
    :param records: of all earlier jobs of the task, as they were read at this one's start.
    """
    job, journal = made.job, services.journal
    services.emit(events.Phase(phase="committing", message="publishing the dataset"))
    _complete_batch(services.batch, made, parts)
    records = _records(services, job, records)
    figures = _figures(services, made, ran)
    with _storing(services, control, made, asked):
        manifest = prepare(
            made.spec.questions()[-1],
            journal,
            parts,
            made.source.rows,
            figures,
            with_steps(made.source.schema, job),
            job.part_folder,
            publish_over_the_cluster,
            _report(services, made),
            [*records, *filter(None, [services.recorder.record])],
            _answers(journal.submission.run_id, job, ran),
        )
    _judge(services, made, manifest)
    with control.uninterrupted():
        commit(journal, manifest)
        services.emit(events.Committed(summary=manifest.summary()))
    return manifest


def _complete_batch(batch: BatchWatch, made: Publication, parts: Sequence[Part]) -> None:
    """Decide that the batch is complete, unless it has ended early or too many rows failed."""
    rows, answered = made.source.rows, add_up(made.job.folder, parts, made.source.rows)
    if batch.ending is None:
        made.tolerance.after(answered.rows)
        batch.observe(rows, answered.rows, rows - answered.rows)
        batch.complete()


def _records(services: Services, job: Job, records: Sequence[JobRecord]) -> Sequence[JobRecord]:
    """The records of the run's other jobs, whose GPU seconds are part of its cost."""
    submission, run_token = services.journal.submission, services.journal.submission.run_token
    with suppress(RaybatchError):  # an older job may have gone on until it found out about the claim
        records = records_of(job.folder, layout.task_folder(submission), job.part_folder)
        services.money.look_back(records, run_token)
    return [record for record in records if record.run_token == run_token]


def _figures(services: Services, made: Publication, ran: Ran) -> RunStatistics:
    """Timing and statistics of the run, with what was checked before it."""
    figures = statistics_of(ran, made.plan, services.start_up, services.money)
    versions = {**cluster_view.check_versions(), **figures.versions}
    plan = {**figures.plan, **made.check.shown()}
    return figures.model_copy(update={"digests": made.check.digests, "versions": versions, "plan": plan})


def _judge(services: Services, made: Publication, manifest: BatchManifest) -> None:
    """Count the rows that failed when their columns were made, and say what became of blank ones."""
    spec = made.spec.questions()[-1]
    if spec.postprocess is not None or spec.response_schema is not None:
        when = (
            "the columns of response_format were made"
            if spec.postprocess is None
            else "postprocess was called"
        )
        describe = partial(failures_of, made.job.folder, manifest, shows_rows=spec.shows_rows)
        made.tolerance.while_published(manifest.counts.error, when, describe)
    if blank := manifest.counts.blank:
        fate = {"ask": "are asked all the same", "null": "are delivered without an answer"}
        text = f"{count_of(blank, 'row has', 'rows have')} only blank text for the prompt, and "
        services.emit(events.Notice(message=f"on_blank: {text}{fate.get(spec.on_blank, 'fail')}."))


def _answers(run: str, job: Job, ran: Ran) -> list[StepParts]:
    """The parts of each step before the last one."""
    found = [list(parts) for parts in job.answers]
    for number, part in ran.answers:
        found[number].append(part)
    return [
        StepParts(step.task, parts, step.part_folder, run)
        for parts, step in zip(found, job.before, strict=True)
    ]


def _report(services: Services, made: Publication) -> DatasetReport:
    """What writes the report of the dataset."""
    spec, record = made.spec, services.recorder.record
    render = partial(apart_for, _LONGEST_RENDERING, rendered, task=made.job.task)
    return DatasetReport(
        services.journal.folder,
        spec,
        [] if record is None else record.course,
        services.reports.attempts(),
        services.emit,
        None if spec.prompt_function is None else render,
    )


@contextmanager
def _storing(services: Services, control: Control, made: Publication, asked: Asked | None) -> Iterator[None]:
    """Keep the responses for other runs meanwhile: what is committed is paid for by none of them.

    Where that fails, or takes longer than the job may, a warning says so; the dataset matters more.
    """
    if made.spec.reuse is None:
        yield
        return
    said: list[events.Notice] = []
    given = (made, asked, services.secrets.aws, said.append)
    # A daemon, so that a store without an answer holds up neither a stop nor the end.
    storing = Thread(target=_store, args=given, name="raybatch-storing", daemon=True)
    storing.start()
    try:
        yield
        while storing.is_alive() and not control.is_late:
            storing.join(_LOOK)
        if storing.is_alive():
            services.emit(events.Notice(level="warning", message=f"reuse: {_TOO_LATE}"))
    finally:
        for notice in [*said]:
            services.emit(notice)


def _store(
    made: Publication,
    asked: Asked | None,
    aws: AwsCredentials | None,
    emit: Callable[[events.Notice], None],
) -> None:
    spec, job = made.spec, made.job
    try:
        store = open_store(spec, aws, emit)
        assert store is not None  # the job has one
        for step, parts in parts_of_steps(job):
            remember(store, job.folder, parts, emit, step.task)
        if asked is not None:
            keep_in_store(store.folder, job, asked)
    except Exception as error:
        emit(events.Notice(level="warning", message=not_stored(error, spec.shows_rows)))


def clean_up(services: Services) -> None:
    """What can't cost the dataset any more: copies of reports, and left-overs."""
    journal = services.journal
    renew_report_copies(journal.folder, journal)
    services.reports.committed(journal)
    after_commit.collect(journal.folder, journal)


def publish_over_the_cluster(function: Callable[..., T], found: Sequence[Any], target: Target) -> Iterable[T]:
    """See :data:`~airflow_provider_raybatch.job.work.ParallelMap`."""
    notes = None if function is publish else target.postprocess
    guarded = guarded_task(function, target.task.spec.shows_rows)
    small = all(sum(part.bytes for part in one.parts) <= _SMALL_BYTES for one in found)
    code = notes.function if notes else None
    return parallel_map(guarded, found, target, _PUBLISHERS, small, postprocess=code)


def look_up(facts: Facts, spec: BatchInferenceSpec, job: Job | None, plan: Plan | None) -> Publication:
    """Look for the input and the job, as far as they were not known when the job learned of the end.

    :raises RaybatchError: the source can't be read, or the storage does not answer.
    """
    services, source = facts[Services], facts.get(Source)
    source = source or read_source(spec, services.secrets.aws, services.secrets.hf_token)
    engine = facts.get(CheckedEngine)
    check = ModelCheck(digests=Digests(spec=spec.response_digest)) if engine is None else engine.check
    return Publication(
        spec,
        source,
        check,
        job or facts.get(Job) or _job(services, spec, check, source),
        plan or services.launch.plan(spec, 0),
        Tolerance(spec, source.rows, all_may_fail=True),
    )


def _job(services: Services, spec: BatchInferenceSpec, check: ModelCheck, source: Source) -> Job:
    """The job as far as its parts depend on it; no replica gets it."""
    journal = services.journal
    job = checked_job(with_time(spec, journal), check, source.listing, journal, services.secrets)
    if (earlier := _earlier_folder(services, spec, source)) is None:
        return job
    return replace(job, part_folder=layout.driver_folder(earlier, journal.submission.submission_id))


def _earlier_folder(services: Services, spec: BatchInferenceSpec, source: Source) -> str | None:
    """Where the last driver of this input has kept its parts: its name depends on the model's files."""
    place, submission = services.journal.folder, services.journal.submission
    files = place.list(layout.task_folder(submission))
    folders = {_run_folder(part.path) for part in listed(files)}
    found = {one for one in folders if layout.is_of_input(one, source.listing.digest)}
    records = [(_run_folder(path), record) for path, record in listed_records(place, files)]
    if spec.on_clear == "regenerate":
        found &= {one for one, record in records if record.run_token == submission.run_token}
    began = {one: record.began for one, record in records}
    return max(found, key=lambda one: (began.get(one, 0.0), one), default=None)


def _run_folder(path: str) -> str:
    """The folder of a driver's folder."""
    return path.rsplit("/", 2)[0]


def is_answered(job: Job, source: Source) -> bool:
    """Whether each row has an answer; not where the parts can't tell it now."""
    try:
        return bool(finished(job, source).rows.all())
    except RaybatchError:
        return False


def add_unanswered(services: Services, made: Publication) -> list[Part] | None:
    """Write the rows that have no answer as such, unless the batch is complete by its outcome.

    :returns: parts with all rows; ``None`` if the batch is complete and an answer is lost.
    """
    job, source, batch = made.job, made.source, services.batch
    done = finished(job, source)
    batch.observe(source.rows, done.good, done.failed)
    unanswered = source.rows - done.good - done.failed
    if (ending := batch.ending) is None:
        return None if unanswered else list(done.parts)
    for error in batch.errors:
        services.emit(events.Notice(level="warning", message=error.message))
    text = f"the batch ends as {ending}: {count_of(unanswered, 'line')} of {source.rows:,} without an answer"
    services.emit(events.Notice(message=text))
    return [*done.parts, *write_unanswered(job, source, done.rows, ending)]
