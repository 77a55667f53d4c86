# SPDX-License-Identifier: Apache-2.0
"""Rows that need no request: found, claimed with the destination, and written."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from airflow_provider_raybatch.contract import events
from airflow_provider_raybatch.contract.manifest import BatchManifest
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.contract.text import count_of
from airflow_provider_raybatch.job.monitor.budgets import Tolerance
from airflow_provider_raybatch.job.output.record import new_record
from airflow_provider_raybatch.job.parts.ledger import RowMask, add_up, read_only
from airflow_provider_raybatch.job.parts.part import Origin, Part
from airflow_provider_raybatch.job.phases.step_reuse import Caches, reuse_steps
from airflow_provider_raybatch.job.planning import cluster_view
from airflow_provider_raybatch.job.planning.plan import Plan
from airflow_provider_raybatch.job.preflight.checked_job import CheckedJob, Services
from airflow_provider_raybatch.job.request.keys import Repetitions
from airflow_provider_raybatch.job.reuse.asked import asked_again, keep
from airflow_provider_raybatch.job.reuse.response_store import StoredResponses
from airflow_provider_raybatch.job.reuse.reuse import ReusePlan, caches_of, plan_reuse
from airflow_provider_raybatch.job.reuse.row_keys import Responses
from airflow_provider_raybatch.job.reuse.store.store import ResponseStore
from airflow_provider_raybatch.job.run.cpu_tasks import keys_over_the_cluster
from airflow_provider_raybatch.job.work import Job


@dataclass(frozen=True)
class FoundAnswers:
    """Where rows have answers already.

    :param tolerance: how many rows may fail, besides those that earlier submissions gave up.
    :param resolved: rows that earlier submissions finished or gave up.
    :param reuse: cached responses of other rows.
    :param stored: the response store, where answers may be taken from it.
    :param remaining: how many rows need a request, as far as is known.
    :param cached: the parts with cached responses, once these are written.
    """

    tolerance: Tolerance
    resolved: RowMask
    reuse: ReusePlan
    stored: Responses | None
    remaining: int
    cached: Sequence[Part] = ()


@dataclass(frozen=True)
class KeptAnswers:
    """The answers that are in parts before replicas begin.

    :param job: with the parts of its earlier steps.
    :param parts: of the dataset.
    :param rows: how many rows have a response in them.
    :param resolved: rows that need no request; `remaining` others do.
    :param store: the response store, where answers may be taken from it.
    """

    job: Job
    tolerance: Tolerance
    parts: Sequence[Part]
    rows: int
    resolved: RowMask
    remaining: int
    repetitions: Repetitions
    store: ResponseStore | None


def find_answers(services: Services, checked: CheckedJob) -> FoundAnswers:
    """Find the rows that need no request."""
    surveyed, earlier, job = checked.surveyed, checked.earlier, checked.job
    spec, store, before = surveyed.spec, surveyed.store, checked.before
    # A client has seen which lines have failed: these are answered.
    given_up = earlier.given_up(spec.max_row_attempts if spec.served_batch is None else 1)
    tolerance = replace(surveyed.tolerance, given_up=int(np.count_nonzero(given_up)))
    tolerance.during([])
    resolved = read_only(earlier.good | given_up)
    regenerates = spec.on_clear == "regenerate" and services.journal.is_cleared()
    stored = None if store is None or regenerates else StoredResponses(store)
    answered = np.any([resolved, *(one.good for one in before)], axis=0)
    ledger, emit = (*before, earlier)[0], services.emit
    reuse = plan_reuse(job.first, surveyed.source, ledger, answered, stored, keys_over_the_cluster, emit)
    done = resolved if before else resolved | reuse.rows
    return FoundAnswers(tolerance, resolved, reuse, stored, int(np.count_nonzero(~done)))


def wait_for_nodes(services: Services, spec: BatchInferenceSpec, rows: int, plan: Plan) -> None:
    """Wait for nodes that hold the replicas for `rows` rows, unless early replicas have found room."""
    if rows and not services.launch.began:
        services.start_up.begins("nodes")
        began_before, check = services.journal.began_before(), services.batch.check
        cluster_view.wait_for(plan, spec.cluster_wait, began_before, services.emit, services.nodes, check)
        services.start_up.ended("nodes")


def claim(services: Services, spec: BatchInferenceSpec, job: Job, rows: int) -> BatchManifest | None:
    """Claim the destination, and note from now on how the job goes.

    :param rows: of the input.
    :returns: the dataset, if another submission of this run has published it meanwhile.
    """
    journal, start_up = services.journal, services.start_up
    committed = journal.claim()
    if committed is None:
        start_up.ended("claim")
        record = new_record(spec, journal.submission, start_up.began, rows)
        services.recorder.begin(job.folder, job.part_folder, record, start_up)
        services.reports.begin(job.folder, spec, journal.submission, job.part_folder)
    return committed


def write_cached(services: Services, checked: CheckedJob, found: FoundAnswers) -> FoundAnswers:
    """Write the responses that were found, and note what the requests of this run depend on.

    :returns: `found` without what was written, whose memory is free then.
    """
    for notice in _reused(checked, found):
        services.emit(notice)
    keep(checked.job, checked.asked)
    cached = found.reuse.write_parts(checked.job.first, checked.surveyed.source)
    return replace(found, reuse=replace(found.reuse, found=(), search=None), cached=cached)


def keep_answers(services: Services, checked: CheckedJob, found: FoundAnswers) -> KeptAnswers:
    """Write the answers of later steps that exist, and add up all that are in parts."""
    earlier, rows = checked.earlier, checked.surveyed.source.rows
    job, written = _reuse_steps(services, checked, found)
    reused = add_up(job.folder, written, rows)
    kept, resolved = earlier.rows + reused.rows, read_only(found.resolved | reused.good)
    services.batch.observe(rows, kept, found.tolerance.given_up)
    return KeptAnswers(
        job,
        found.tolerance,
        [*earlier.parts, *reused.parts],
        kept,
        resolved,
        int(np.count_nonzero(~resolved)),
        found.reuse.repetitions,
        None if found.stored is None else checked.surveyed.store,
    )


def _reuse_steps(services: Services, checked: CheckedJob, found: FoundAnswers) -> tuple[Job, list[Part]]:
    """Find answers of later steps, and tell replicas which rows have answers of earlier ones.

    :returns: the job with the parts of its earlier steps; parts of the last step that were written.
    """
    answers = [*(list(step.parts) for step in checked.before), []]
    answers[0] += found.cached
    files, source = checked.earlier.files, checked.surveyed.source

    def of_step(step: Job) -> list[tuple[Origin, Responses]]:
        return caches_of(step, files, found.stored, source.rows, services.emit)

    caches = Caches(of_step, keys_over_the_cluster, services.emit)
    reuse_steps(checked.job, source, found.resolved, answers, caches)
    *earlier, last = answers
    return replace(checked.job, answers=tuple(map(tuple, earlier))), last


def _reused(checked: CheckedJob, found: FoundAnswers) -> Iterable[events.Notice]:
    """What is reused, and why the other rows are asked."""
    job, earlier, rows = checked.job, checked.earlier, checked.surveyed.source.rows
    if earlier.damaged:
        damaged = f"parts: {count_of(len(earlier.damaged), 'is', 'are')} damaged"
        example = f"{job.folder.uri}/{earlier.damaged[0].path}"
        text = f"{damaged}, and the rows are asked again (for example, {example})"
        yield events.Notice(level="warning", message=text)
    if earlier.rows:
        done = f"done by earlier submissions: {earlier.rows:,} of {count_of(rows, 'row')}"
        rest = "going on with the rest" if earlier.rows < rows else "there is nothing left to ask"
        yield events.Notice(message=f"{done}; {rest}")
    if found.reuse.notice:
        yield events.Notice(message=found.reuse.notice)
    store = None if checked.surveyed.store is None else checked.surveyed.store.folder
    if found.remaining and (why := asked_again(job, earlier, store, checked.asked)) is not None:
        yield events.Notice(message=why)
