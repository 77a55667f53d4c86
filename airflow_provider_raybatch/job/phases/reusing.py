# SPDX-License-Identifier: Apache-2.0
"""Rows that need no request: found, claimed with the destination, and written."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from airflow_provider_raybatch.contract import events
from airflow_provider_raybatch.contract.manifest import BatchManifest
from airflow_provider_raybatch.contract.text import count_of
from airflow_provider_raybatch.job.output.record import new_record
from airflow_provider_raybatch.job.parts.ledger import add_up
from airflow_provider_raybatch.job.parts.part import Origin, Part
from airflow_provider_raybatch.job.planning import cluster_view
from airflow_provider_raybatch.job.preflight.ready import JobContext
from airflow_provider_raybatch.job.reuse.asked import asked_again, keep
from airflow_provider_raybatch.job.reuse.hits import Responses
from airflow_provider_raybatch.job.reuse.response_store import StoredResponses
from airflow_provider_raybatch.job.reuse.reuse import caches_of, plan_reuse
from airflow_provider_raybatch.job.run.cpu_tasks import (
    keys_over_the_cluster,
)
from airflow_provider_raybatch.job.steps.reusing import Caches, reuse_steps
from airflow_provider_raybatch.job.work import Job


def find_answers(context: JobContext) -> None:
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
    context.stored = store
    resolved, first, source = context.resolved, context.job.steps[0], context.source
    asked = np.any([resolved, *(step.good for step in context.earlier_steps)], axis=0)
    ledger = (*context.earlier_steps, earlier)[0]
    reuse = plan_reuse(first, source, ledger, asked, store, keys_over_the_cluster, context.emit)
    context.reuse = reuse
    if context.refusal is not None:
        context.refusal.unless(earlier.good | reuse.rows)
        context.launch.load(context.model)
    done = resolved if context.earlier_steps else resolved | reuse.rows
    context.remaining = int(np.count_nonzero(~done))
    context.sizing = context.launch.plan(context.spec, context.remaining)
    context.start_up.ended("earlier")


def claim(context: JobContext) -> BatchManifest | None:
    """Wait for nodes, and claim the destination.

    :returns: the dataset, if another submission of this run has published it meanwhile.
    """
    journal = context.journal
    if not context.earlier_steps:  # else more answers may be found
        _wait_for_nodes(context)
    committed = journal.claim()
    if committed is None:
        context.start_up.ended("claim")
        job, start_up = context.job, context.start_up
        record = new_record(context.spec, journal.submission, start_up.began, context.source.rows)
        context.recorder.begin(job.folder, job.part_folder, record, start_up)
        context.reports.begin(job.folder, context.spec, journal.submission, job.part_folder)
    return committed


def _wait_for_nodes(context: JobContext) -> None:
    journal = context.journal
    if context.remaining and not context.launch.began:  # early replicas have found room
        context.start_up.begins("nodes")
        began_before, longest = journal.began_before(), context.spec.cluster_wait
        check = context.batch.check
        cluster_view.wait_for(context.sizing, longest, began_before, context.emit, context.nodes, check)
        context.start_up.ended("nodes")


def write_found(context: JobContext) -> None:
    """Write the responses that were found, and note what the requests of this run depend on."""
    for notice in _reused(context):
        context.emit(notice)
    keep(context.job, context.asked)
    cached = context.reuse.write_parts(context.job.steps[0], context.source)
    context.reuse = replace(context.reuse, found=(), search=None)  # frees memory
    reused = add_up(context.job.folder, _reuse_steps(context, cached), context.source.rows)
    context.ledger = [*context.earlier.parts, *reused.parts]
    context.kept = context.earlier.rows + reused.rows
    context.resolved |= reused.good
    context.batch.observe(context.source.rows, context.kept, context.tolerance.given_up)
    if (remaining := int(np.count_nonzero(~context.resolved))) != context.remaining:
        # The store's index names them, but their data was gone or unreadable.
        context.remaining, context.sizing = remaining, context.launch.plan(context.spec, remaining)
    if context.earlier_steps:
        _wait_for_nodes(context)


def _reuse_steps(context: JobContext, first: list[Part]) -> list[Part]:
    """Find answers of later steps, and tell replicas which rows have answers of earlier ones.

    :param first: parts of the first step that were written just now.
    :returns: parts of the last step.
    """
    answers = [*(list(step.parts) for step in context.earlier_steps), []]
    answers[0] += first
    files, rows = context.earlier.files, context.source.rows

    def of_step(step: Job) -> list[tuple[Origin, Responses]]:
        return caches_of(step, files, context.stored, rows, context.emit)

    caches = Caches(of_step, keys_over_the_cluster, context.emit)
    reuse_steps(context.job, context.source, context.resolved, answers, caches)
    *earlier, last = answers
    context.job = replace(context.job, answers=tuple(map(tuple, earlier)))
    return last


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
