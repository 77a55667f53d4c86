# SPDX-License-Identifier: Apache-2.0
"""A batch of the Batch API that is over: what is finished of it is published, without model or GPUs.

So it doesn't matter what the checks of a job that asks would find, or how long they take.
"""

from __future__ import annotations

from dataclasses import replace

from airflow_provider_raybatch.contract import events, layout
from airflow_provider_raybatch.contract.failures import RaybatchError
from airflow_provider_raybatch.contract.manifest import Digests
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.contract.text import count_of
from airflow_provider_raybatch.job.input.survey import Source
from airflow_provider_raybatch.job.monitor.error_budget import Tolerance
from airflow_provider_raybatch.job.output.openai_batch.unanswered import finished, write_unanswered
from airflow_provider_raybatch.job.output.record import listed_records
from airflow_provider_raybatch.job.parts.part import Part, listed
from airflow_provider_raybatch.job.phases.publishing import Publication
from airflow_provider_raybatch.job.planning.plan import Plan
from airflow_provider_raybatch.job.preflight.input_check import read_source
from airflow_provider_raybatch.job.preflight.model_check import ModelCheck
from airflow_provider_raybatch.job.preflight.ready import CheckedEngine, with_time
from airflow_provider_raybatch.job.preflight.services import Services
from airflow_provider_raybatch.job.preflight.step_jobs import checked_job
from airflow_provider_raybatch.job.work import Job


def look_up(
    services: Services,
    spec: BatchInferenceSpec,
    source: Source | None,
    engine: CheckedEngine | None,
    job: Job | None,
    plan: Plan | None,
) -> Publication:
    """Look for the input and the job, as far as they were not known when the job learned of the end.

    :raises RaybatchError: the source can't be read, or the storage does not answer.
    """
    secrets = services.secrets
    source = source or read_source(spec, secrets.aws, secrets.hf_token)
    check = ModelCheck(digests=Digests(spec=spec.response_digest)) if engine is None else engine.check
    return Publication(
        spec,
        source,
        check,
        job or _job(services, spec, check, source),
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
