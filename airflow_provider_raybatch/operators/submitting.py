# SPDX-License-Identifier: Apache-2.0
"""Submit the job of an attempt, or take the one that is there, and stop those of earlier runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider_raybatch.cluster.jobs_api.blocking import run_blocking
from airflow_provider_raybatch.contract.submission import OnStaleState
from airflow_provider_raybatch.exceptions import RayBatchException
from airflow_provider_raybatch.operators.attempt import stop_earlier_runs
from airflow_provider_raybatch.operators.cancel_handler import CancelHandler
from airflow_provider_raybatch.operators.plan import JobPlan, TaskRun
from airflow_provider_raybatch.operators.run_record import Store, check_current, forget_earlier

if TYPE_CHECKING:
    from airflow_provider_raybatch.cluster.follow.loop import Log
    from airflow_provider_raybatch.cluster.jobs_api.models import JobRequest
    from airflow_provider_raybatch.cluster.submit.resolve import Submitted
    from airflow_provider_raybatch.places.place import Cluster


def submit(
    cluster: Cluster,
    run: TaskRun,
    plan: JobPlan,
    store: Store,
    cancel_handler: CancelHandler,
    on_stale_state: OnStaleState,
    log: Log,
) -> Submitted:
    """Submit the job, or take the one that is there; stop what is left of earlier runs.

    :param cancel_handler: from here on a kill of the task stops the job.
    :raises RayBatchException: it was refused, or the cluster does not answer.
    """
    from airflow_provider_raybatch.cluster.submit.resolve import FIRST_JOB

    kept_in = None if run.place.embedded else store
    cancel_handler.concerns(cluster, run.key, kept_in, plan.lease_terms, run_key=run.mark_key)
    submitted = run_blocking(_submit_or_adopt(cluster, run, plan, store, cancel_handler, on_stale_state))
    verb = "Submitted Ray job"
    if submitted.adopted:
        ended = submitted.info.status.is_terminal
        verb = "Found finished job" if ended else "Re-attached to running job"
    reason = submitted.reason
    if reason == FIRST_JOB and run.record.earlier != ():
        reason = "a new run began, as after each clear"
    where = run.place.job_page(submitted.submission_id) or cluster.address.shown
    log.info("%s %s: %s (%s).", verb, submitted.submission_id, where, reason)
    cancel_handler.end_if_killed(log)
    if run.record.earlier != () and stop_earlier_runs(run, submitted.submission_id, log):
        try:
            forget_earlier(store, run.run_token)
        except RayBatchException as error:
            log.warning("The next attempt asks for jobs of earlier runs again: %s", error)
    return submitted


async def _submit_or_adopt(
    cluster: Cluster,
    run: TaskRun,
    plan: JobPlan,
    store: Store,
    cancel_handler: CancelHandler,
    on_stale_state: OnStaleState,
) -> Submitted:
    from airflow_provider_raybatch.cluster.jobs_api.client import RayJobsClient
    from airflow_provider_raybatch.cluster.submit.resolve import submit_or_adopt

    async with RayJobsClient(cluster.address) as client:
        finished = plan.finished

        async def build(submission_id: str) -> JobRequest:
            run.deadline.refuse_if_passed()  # here, since a job that is there already may have a result
            request = await plan.build(client, submission_id)
            check_current(store, run.run_token)
            cancel_handler.posting(submission_id)
            return request

        submitted = await submit_or_adopt(
            client,
            run.key,
            plan.fingerprint,
            build,
            on_stale_state,
            None if finished is None else lambda info: finished(client, info),
        )
        cancel_handler.posted(submitted.submission_id)
        return submitted
