# SPDX-License-Identifier: Apache-2.0
"""What a job needs to publish a batch that is over: the input and earlier parts, but neither model nor GPUs.

So it doesn't matter what the checks of a job that asks would find, or how long they take.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from airflow_provider_raybatch.contract import layout
from airflow_provider_raybatch.contract.manifest import BatchManifest, Digests
from airflow_provider_raybatch.contract.submission import Submission
from airflow_provider_raybatch.job.input.survey import Source
from airflow_provider_raybatch.job.monitor.error_budget import Tolerance
from airflow_provider_raybatch.job.output.record import listed_records
from airflow_provider_raybatch.job.parts.ledger import RowMask
from airflow_provider_raybatch.job.parts.part import listed
from airflow_provider_raybatch.job.preflight.input_check import read_source
from airflow_provider_raybatch.job.preflight.model_check import ModelCheck
from airflow_provider_raybatch.job.preflight.ready import JobContext, open_destination, with_time
from airflow_provider_raybatch.job.preflight.step_jobs import checked_job
from airflow_provider_raybatch.job.reuse.reuse import ReusePlan
from airflow_provider_raybatch.job.work import Job


def make_ready_to_end(context: JobContext, submission: Submission) -> BatchManifest | None:
    """Find what is needed; what the job has found before it learned of the end stays.

    :returns: the dataset, if an earlier submission of this run committed it.
    :raises RaybatchError: the destination is another's, or the source can't be read.
    """
    has_journal = hasattr(context, "journal")
    committed = context.journal.committed() if has_journal else open_destination(context, submission)
    if committed is not None:
        return committed
    spec, aws = context.spec, context.secrets.aws
    if not hasattr(context, "source"):
        context.source = read_source(spec, aws, context.secrets.hf_token)
    rows = context.source.rows
    context.tolerance = Tolerance(spec, rows, all_may_fail=True)
    if not hasattr(context, "checked"):
        context.checked = ModelCheck(digests=Digests(spec=spec.response_digest))
    if not hasattr(context, "job"):
        context.job = _job(context, context.source)
    no_rows: RowMask = np.zeros(rows, np.bool_)
    context.reuse = ReusePlan(no_rows)
    context.remaining = 0
    if not hasattr(context, "sizing"):
        context.sizing = context.launch.plan(spec, 0)
    return None


def _job(context: JobContext, source: Source) -> Job:
    """The job as far as its parts depend on it; no replica gets it."""
    journal, spec = context.journal, with_time(context.spec, context.journal)
    job = checked_job(spec, context.checked, source.listing, journal, context.secrets)
    if (earlier := _earlier_folder(context, source)) is None:
        return job
    return replace(job, part_folder=layout.driver_folder(earlier, journal.submission.submission_id))


def _earlier_folder(context: JobContext, source: Source) -> str | None:
    """Where the last driver of this input has kept its parts: its name depends on the model's files."""
    place, submission = context.journal.folder, context.journal.submission
    files = place.list(layout.task_folder(submission))
    folders = {_run_folder(part.path) for part in listed(files)}
    found = {one for one in folders if layout.is_of_input(one, source.listing.digest)}
    records = [(_run_folder(path), record) for path, record in listed_records(place, files)]
    if context.spec.on_clear == "regenerate":
        found &= {one for one, record in records if record.run_token == submission.run_token}
    began = {one: record.began for one, record in records}
    return max(found, key=lambda one: (began.get(one, 0.0), one), default=None)


def _run_folder(path: str) -> str:
    """The folder of a driver's folder."""
    return path.rsplit("/", 2)[0]
