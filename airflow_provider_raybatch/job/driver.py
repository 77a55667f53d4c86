# SPDX-License-Identifier: Apache-2.0
"""The job, step by step: everything that can be refused first, then claim, generate, commit."""

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
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec, Submission
from airflow_provider_raybatch.job.control.control import Control
from airflow_provider_raybatch.job.execution import pool
from airflow_provider_raybatch.job.execution.cpu_tasks import calls_users_code, spread
from airflow_provider_raybatch.job.execution.ray_data_llm import dataset as ray_data_llm
from airflow_provider_raybatch.job.monitor.board import ReplicaReport
from airflow_provider_raybatch.job.monitor.budget import Budget, spent
from airflow_provider_raybatch.job.monitor.claim import ClaimWatch
from airflow_provider_raybatch.job.monitor.progress import Tracker
from airflow_provider_raybatch.job.output import cleanup
from airflow_provider_raybatch.job.output.commit import commit, in_sequence, prepare
from airflow_provider_raybatch.job.output.dead_letters import failures_of, with_dead_letters
from airflow_provider_raybatch.job.output.manifest_copy import renew_copy
from airflow_provider_raybatch.job.output.publish import Range, Target, publish
from airflow_provider_raybatch.job.output.report import report
from airflow_provider_raybatch.job.parts.ledger import add_up
from airflow_provider_raybatch.job.planning import cluster_view, plan
from airflow_provider_raybatch.job.preflight.ready import Ready, make_ready
from airflow_provider_raybatch.job.reuse import row_keys
from airflow_provider_raybatch.job.reuse.remaining import work
from airflow_provider_raybatch.job.reuse.response_store import StoredResponses, remember, remember_committed
from airflow_provider_raybatch.job.reuse.reuse import find_savings, parts_of_task
from airflow_provider_raybatch.job.reuse.row_keys import RequestKeys
from airflow_provider_raybatch.job.work import Job, WorkItem

T = TypeVar("T")

Say = Callable[[events.Event], None]

_PUBLISHERS = 8
_MOST_KEYERS = 64


def run(
    spec: BatchInferenceSpec,
    submission: Submission,
    say: Say,
    secrets: Secrets | None = None,
    control: Control | None = None,
) -> Summary:
    """Do the job on the Ray cluster that this process is connected to.

    :param secrets: credentials that travelled with the job; by default none.
    :param control: what ends the job early; by default the spec's deadline alone.
    :returns: what was committed; said as well, since what comes after it may take its time.
    :raises RaybatchError: one sentence, with the failure class that decides what follows.
    """
    began = time.time()
    control = control or Control(spec.limits, say)
    say(events.Phase(phase="preflight", message="checking source, prompt, model, destination and cluster"))
    ready = make_ready(spec, submission, secrets or Secrets(), say)
    if not isinstance(ready, Ready):
        say(events.Committed(summary=ready.summary, reused=True))
        remember_committed(spec, ready.destination, ready.credentials, say)
        return ready.summary
    try:
        return _finish(spec, submission, ready, say, control, began)
    except Exception as error:
        told = with_dead_letters(error, ready.job, ready.source.rows)
        if told is error:
            raise
        raise told from error


def _finish(
    spec: BatchInferenceSpec,
    submission: Submission,
    ready: Ready,
    say: Say,
    control: Control,
    began: float,
) -> Summary:
    """Reuse, generate and commit.

    :param began: epoch seconds at which the job started.
    """
    job, source, journal, earlier = ready.job, ready.source, ready.journal, ready.earlier
    given_up = earlier.given_up(spec.limits.max_row_attempts)
    tolerance = replace(ready.tolerance, given_up=int(np.count_nonzero(given_up)))
    tolerance.during([])
    settled = earlier.good | given_up
    store = None if ready.store is None or ready.pays_again else StoredResponses(ready.store)
    savings = find_savings(job, source, earlier, settled, store, keys_over_the_cluster, say)
    left = int(np.count_nonzero(~(settled | savings.rows)))
    chosen = plan.make(spec, left, cluster_view.view())
    if left:
        cluster_view.wait_for(chosen, spec.limits.cluster_wait, journal.began_before(), say)
    if (committed := journal.claim()) is not None:
        renew_copy(job.folder, journal)
        say(events.Committed(summary=committed.summary(), reused=True))
        return committed.summary()
    preflight_seconds = time.time() - began
    if earlier.rows:
        done = f"{earlier.rows:,} of {source.rows:,} rows were done by earlier submissions"
        rest = "going on with the rest" if earlier.rows < source.rows else "there is nothing left to ask"
        say(events.Notice(message=f"{done}; {rest}"))
    if savings.notice:
        say(events.Notice(message=savings.notice))

    adopted = savings.adopt(job, source)
    ledger = [*earlier.parts, *adopted]
    settled |= savings.shared | add_up(job.folder, adopted, source.rows).good
    lost = int(np.count_nonzero(~settled)) - left
    if lost:
        # Named by the store's index, and gone or unreadable when it came to reading them.
        left += lost
        chosen = plan.make(spec, left, cluster_view.view())
    items = work(source, chosen.rows_per_chunk, settled, savings.repetitions)
    ran = pool.Ran()
    if items:
        say(events.Phase(phase="starting", message=chosen.sentence(left)))
        tracker = Tracker(source.rows, source.rows - left, time.time())
        paid = spent(spec.limits, job.folder, layout.task_folder(submission))
        unseen = chosen.replicas if spec.engine.kind == ray_data_llm.NAME else 0
        budget = Budget(spec.limits, paid, chosen.gpus, time.time(), unseen)
        claim = ClaimWatch(journal.check)

        def check(reports: Sequence[ReplicaReport], progress: events.Progress) -> None:
            tolerance.during(reports)
            budget.check(reports, progress, time.time())
            control.check(progress)
            claim.check()

        with control.draining(), claim.looking():
            ran = pool.run(job, chosen, items, tracker, say, check)
        # The last rows may have failed after the last look; it matters then, too, whether they kill engines.
        tolerance.during(ran.reports)
        ledger += ran.parts

    say(events.Phase(phase="committing", message="publishing the dataset"))
    ledger += savings.fan_out(job, source, ledger)
    tolerance.after(add_up(job.folder, ledger, source.rows))
    told = report(ran, chosen, began, preflight_seconds)
    versions = {**ready.versions, **told.versions}
    told = replace(told, digests=ready.checked.digests, versions=versions, part_folder=job.part_folder)
    manifest = prepare(
        spec, job.folder, journal, ledger, source.rows, told, source.schema, publish_over_the_cluster
    )
    if spec.postprocess is not None:
        tolerance.postprocessed(manifest.counts.error, lambda: failures_of(job.folder, manifest))
    with control.uninterrupted():
        commit(job.folder, journal, manifest)
        say(events.Committed(summary=manifest.summary()))
    if ready.store is not None:
        # After the commit, so that a slow or failing store can't cost the dataset.
        say(events.Phase(phase="storing", message="adding new responses to the response store"))
        remember(ready.store, job.folder, parts_of_task(job), say, job.task)
    cleanup.collect(job.folder, journal)
    return manifest.summary()


def publish_over_the_cluster(
    function: Callable[[Range, Target], T], found: Sequence[Range], target: Target
) -> Iterable[T]:
    """See :data:`~airflow_provider_raybatch.job.output.commit.Spread`."""
    if len(found) <= 1 and function is publish:  # the other calls users' code, for which see the CPU tasks
        return in_sequence(function, found, target)
    return spread(function, found, target, _PUBLISHERS)


def keys_over_the_cluster(
    function: Callable[[Job, Sequence[WorkItem]], RequestKeys],
    job: Job,
    groups: Sequence[Sequence[WorkItem]],
) -> Iterable[RequestKeys]:
    """See :data:`~airflow_provider_raybatch.job.reuse.row_keys.Mapper`."""
    if len(groups) <= 1 and not calls_users_code(job.spec):
        return row_keys.in_sequence(function, job, groups)

    def swapped(group: Sequence[WorkItem], job: Job) -> RequestKeys:
        return function(job, group)

    at_once = int(min(_MOST_KEYERS, max(1, ray.cluster_resources().get("CPU", 1))))
    return spread(swapped, groups, job, at_once)
