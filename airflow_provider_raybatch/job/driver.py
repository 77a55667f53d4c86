# SPDX-License-Identifier: Apache-2.0
"""The job, step by step: all checks first, then claim, generate and commit."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np
import ray

from airflow_provider_raybatch.contract import events, layout
from airflow_provider_raybatch.contract.manifest import Summary
from airflow_provider_raybatch.contract.secrets import Secrets
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.contract.submission import Submission
from airflow_provider_raybatch.contract.text import count_of
from airflow_provider_raybatch.job.control.control import Control
from airflow_provider_raybatch.job.input.survey import ROWS_PER_CHUNK
from airflow_provider_raybatch.job.monitor.board import ReplicaReport
from airflow_provider_raybatch.job.monitor.budget import Budget, spent
from airflow_provider_raybatch.job.monitor.claim import ClaimWatch
from airflow_provider_raybatch.job.monitor.progress import Tracker
from airflow_provider_raybatch.job.monitor.start_up import StartUp, in_words
from airflow_provider_raybatch.job.output import cleanup
from airflow_provider_raybatch.job.output.commit import commit, prepare
from airflow_provider_raybatch.job.output.dead_letters import failures_of, with_rows_left
from airflow_provider_raybatch.job.output.manifest_copy import renew_copy
from airflow_provider_raybatch.job.output.publish import Range, Target, publish
from airflow_provider_raybatch.job.output.report import report
from airflow_provider_raybatch.job.parts.ledger import RowMask, add_up, mark_damaged
from airflow_provider_raybatch.job.parts.reading import DamagedPartError
from airflow_provider_raybatch.job.planning import cluster_view
from airflow_provider_raybatch.job.planning.plan import Plan
from airflow_provider_raybatch.job.preflight.ready import Ready, make_ready
from airflow_provider_raybatch.job.request import special_tokens
from airflow_provider_raybatch.job.request.repetitions import Repetitions
from airflow_provider_raybatch.job.reuse.asked import asked_again, keep, keep_in_store
from airflow_provider_raybatch.job.reuse.remaining import work
from airflow_provider_raybatch.job.reuse.response_store import StoredResponses, remember, remember_committed
from airflow_provider_raybatch.job.reuse.reuse import parts_of_task, plan_reuse
from airflow_provider_raybatch.job.reuse.row_keys import RequestKeys
from airflow_provider_raybatch.job.row_order import regroup
from airflow_provider_raybatch.job.row_order.rows_to_do import Input, input_of
from airflow_provider_raybatch.job.run import supervision
from airflow_provider_raybatch.job.run.cpu_tasks import cut_in_tasks, parallel_map, users_code
from airflow_provider_raybatch.job.run.launch import Launch
from airflow_provider_raybatch.job.run.ray_data_llm import dataset as ray_data_llm
from airflow_provider_raybatch.job.work import Job, WorkItem, in_sequence

T = TypeVar("T")

Emit = Callable[[events.Event], None]

_PUBLISHERS = 8
_MOST_KEYERS = 64


def run(
    spec: BatchInferenceSpec,
    submission: Submission,
    emit: Emit,
    secrets: Secrets | None = None,
    control: Control | None = None,
) -> Summary:
    """Do the job on the Ray cluster that this process is connected to.

    :param secrets: credentials that travelled with the job; by default none.
    :param control: what ends the job early; by default the spec's deadline alone.
    :returns: what was committed; emitted as well, since the steps after it may be slow.
    :raises RaybatchError: one sentence, with the failure class that decides what follows.
    """
    start_up = StartUp()
    control = control or Control(spec, emit)
    emit(events.Phase(phase="preflight", message="checking source, prompt, model, destination and cluster"))
    with Launch() as launch, start_up.saying(emit):
        ready = make_ready(spec, submission, secrets or Secrets(), emit, start_up, launch)
        if not isinstance(ready, Ready):
            emit(events.Committed(summary=ready.summary, reused=True))
            remember_committed(spec, ready.destination, ready.credentials, emit)
            return ready.summary
        try:
            return _finish(spec, submission, ready, emit, control, start_up, launch)
        except Exception as error:
            if isinstance(error, DamagedPartError):
                mark_damaged(ready.job.folder, ready.job.part_folder.rpartition("/")[0])
            failure = with_rows_left(error, ready.job, ready.source.rows)
            if failure is error:
                raise
            raise failure from error


def _finish(
    spec: BatchInferenceSpec,
    submission: Submission,
    ready: Ready,
    emit: Emit,
    control: Control,
    start_up: StartUp,
    launch: Launch,
) -> Summary:
    """Reuse, generate and commit."""
    job, source, journal, earlier = ready.job, ready.source, ready.journal, ready.earlier
    given_up = earlier.given_up(spec.max_row_attempts)
    tolerance = replace(ready.tolerance, given_up=int(np.count_nonzero(given_up)))
    tolerance.during([])
    resolved = earlier.good | given_up
    store = None if ready.store is None or ready.regenerate else StoredResponses(ready.store)
    reuse_plan = plan_reuse(job, source, earlier, resolved, store, keys_over_the_cluster, emit)
    remaining = int(np.count_nonzero(~(resolved | reuse_plan.rows)))
    if ready.refusal is not None:
        ready.refusal.unless(earlier.good | reuse_plan.rows)
        launch.load(ready.model)
    sizing = launch.plan(spec, remaining)
    start_up.ended("earlier")
    if remaining and not launch.began:  # early replicas have found room
        cluster_view.wait_for(sizing, spec.cluster_wait, journal.began_before(), emit)
        start_up.ended("nodes")
    if (committed := journal.claim()) is not None:
        renew_copy(job.folder, journal)
        cleanup.collect_copies(job.folder, journal)
        emit(events.Committed(summary=committed.summary(), reused=True))
        return committed.summary()
    start_up.ended("claim")
    preflight_seconds = start_up.seconds
    if earlier.damaged:
        damaged = (
            f"parts: {count_of(len(earlier.damaged), 'is', 'are')} damaged, and the rows are asked again"
        )
        text = f"{damaged} (for example, {job.folder.uri}/{earlier.damaged[0].path})"
        emit(events.Notice(level="warning", message=text))
    if earlier.rows:
        done = f"done by earlier submissions: {earlier.rows:,} of {count_of(source.rows, 'row')}"
        rest = "going on with the rest" if earlier.rows < source.rows else "there is nothing left to ask"
        emit(events.Notice(message=f"{done}; {rest}"))
    if reuse_plan.notice:
        emit(events.Notice(message=reuse_plan.notice))
    stored = None if ready.store is None else ready.store.folder
    if remaining and (why := asked_again(job, earlier, stored, ready.asked)) is not None:
        emit(events.Notice(message=why))
    keep(job, ready.asked)

    cached = reuse_plan.write_parts(job, source)
    reuse_plan = replace(reuse_plan, found=(), search=None)  # what is written needs no memory any more
    reused = add_up(job.folder, cached, source.rows)
    ledger = [*earlier.parts, *reused.parts]
    resolved |= reuse_plan.shared | reused.good
    unreadable = int(np.count_nonzero(~resolved)) - remaining
    if unreadable:
        # The store's index names them, but their data was gone or unreadable.
        remaining += unreadable
        sizing = launch.plan(spec, remaining)
    ran, gpu_seconds = supervision.Ran(), 0.0
    if resolved.all():
        if launch.began:  # for what turned out not to be needed
            gpu_seconds = sizing.gpus * sizing.replicas * (time.time() - launch.began)
        launch.end()
        emit(events.Notice(message=f"no engine was needed; checks took {in_words(start_up.phases())}"))
    else:
        emit(events.Phase(phase="starting", message=sizing.sentence(remaining)))
        if spec.keep_warm is not None and sizing.spans_nodes:
            emit(events.Notice(level="warning", message="keep_warm has no effect: replicas span nodes"))
        tracker = Tracker(source.rows, source.rows - remaining, time.time(), earlier.rows + reused.rows)
        paid = spent(spec, job.folder, layout.task_folder(submission))
        of_ray = spec.engine == ray_data_llm.NAME
        unseen = sizing.replicas if of_ray else 0
        budget = Budget(spec, paid, sizing.gpus, launch.began or time.time(), unseen)
        claim = ClaimWatch(journal.check)
        todo = (
            work(source, sizing.rows_per_chunk, resolved, reuse_plan.repetitions)
            if of_ray
            else launch.replicas(
                job, sizing, _rows_to_do(ready, sizing, resolved, reuse_plan.repetitions, emit)
            )
        )

        has_begun = False

        def check(reports: Sequence[ReplicaReport], progress: events.Progress) -> None:
            nonlocal has_begun
            if not has_begun and any(one.first_request for one in reports):
                has_begun = True
                emit(events.Notice(message=f"first request after {in_words(start_up.phases(reports))}"))
            tolerance.during(reports)
            budget.check(reports, time.time())
            control.check(progress)
            claim.check()

        with control.draining(), claim.looking():
            try:
                ran = supervision.run(job, sizing, todo, tracker, emit, check)
            finally:
                launch.end()
        # Rows may have failed after the last check; a poison row must still be reported as one.
        tolerance.during(ran.reports)
        for text in _told(spec, ran.reports):
            emit(events.Notice(message=text))
        ledger += ran.parts
        gpu_seconds = 3600 * budget.gpu_hours

    emit(events.Phase(phase="committing", message="publishing the dataset"))
    ledger += reuse_plan.fan_out(job, source, ledger)
    tolerance.after(add_up(job.folder, ledger, source.rows))
    figures = report(ran, sizing, start_up, preflight_seconds)
    versions = {**ready.versions, **figures.versions}
    figures = replace(
        figures,
        digests=ready.checked.digests,
        versions=versions,
        part_folder=job.part_folder,
        gpu_seconds=gpu_seconds,
    )
    manifest = prepare(
        spec, job.folder, journal, ledger, source.rows, figures, source.schema, publish_over_the_cluster
    )
    if spec.postprocess is not None:
        tolerance.postprocessed(manifest.counts.error, lambda: failures_of(job.folder, manifest))
    with control.uninterrupted():
        commit(job.folder, journal, manifest)
        emit(events.Committed(summary=manifest.summary()))
    if ready.store is not None:
        # After the commit, so that a slow or failing store can't cost the dataset.
        emit(events.Phase(phase="storing", message="adding new responses to the response store"))
        remember(ready.store, job.folder, parts_of_task(job), emit, job.task)
        keep_in_store(ready.store.folder, job, ready.asked)
    cleanup.collect(job.folder, journal)
    return manifest.summary()


def _told(spec: BatchInferenceSpec, reports: Sequence[ReplicaReport]) -> Iterable[str]:
    """What became of prompts, by all replicas."""
    if special := sum(report.special for report in reports):
        yield f"rows with special tokens in their text: {special:,}, {special_tokens.effect(spec)}"
    if truncated := sum(report.truncated for report in reports):
        yield f"prompts cut to the context: {truncated:,}; the column truncated_prompt_tokens has the tokens"


def _rows_to_do(ready: Ready, sizing: Plan, resolved: RowMask, repetitions: Repetitions, emit: Emit) -> Input:
    """The rows without an answer: in the order of the input, or brought together where that pays."""
    todo = input_of(ready.source, resolved, repetitions)
    grouping = regroup.grouping_for(todo, sizing, ready.prefix, ready.lengths)
    if grouping is None:
        return todo
    emit(events.Notice(message=grouping.notice))
    items = work(ready.source, ROWS_PER_CHUNK, resolved)
    return regroup.regrouped(ready.job, items, todo, grouping, cut_in_tasks)


def publish_over_the_cluster(
    function: Callable[[Range, Target], T], found: Sequence[Range], target: Target
) -> Iterable[T]:
    """See :data:`~airflow_provider_raybatch.job.work.Spread`."""
    if len(found) <= 1 and function is publish:  # the other calls users' code, for which see the CPU tasks
        return in_sequence(function, found, target)
    notes = None if function is publish else target.postprocess
    return parallel_map(
        function, found, target, _PUBLISHERS, users_code(postprocess=notes.function if notes else None)
    )


def keys_over_the_cluster(
    function: Callable[[Sequence[WorkItem], Job], RequestKeys],
    groups: Sequence[Sequence[WorkItem]],
    job: Job,
) -> Iterable[RequestKeys]:
    """See :data:`~airflow_provider_raybatch.job.work.Spread`."""
    if len(groups) <= 1 and job.spec.prompt_function is None:  # which is called in CPU tasks alone
        return in_sequence(function, groups, job)
    at_once = int(min(_MOST_KEYERS, max(1, ray.cluster_resources().get("CPU", 1))))
    return parallel_map(function, groups, job, at_once, users_code(prompt_function=job.spec.prompt_function))
