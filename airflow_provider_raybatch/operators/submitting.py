# SPDX-License-Identifier: Apache-2.0
"""Submit the job of an attempt, or take the one that is there, and stop those of earlier runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider_raybatch.cluster.jobs_api.blocking import run_blocking
from airflow_provider_raybatch.contract.failures import RaybatchError
from airflow_provider_raybatch.contract.submission import OnStaleState
from airflow_provider_raybatch.exceptions import RayBatchException
from airflow_provider_raybatch.operators.attempt import stop_earlier_runs
from airflow_provider_raybatch.operators.cancel_handler import CancelHandler
from airflow_provider_raybatch.operators.plan import JobPlan, TaskRun
from airflow_provider_raybatch.operators.run_record import Store, check_current, forget_earlier
from airflow_provider_raybatch.places.place import Cluster, SubmitRequest

if TYPE_CHECKING:
    from airflow_provider_raybatch.cluster.follow.loop import Log
    from airflow_provider_raybatch.cluster.jobs_api.client import RayJobsClient
    from airflow_provider_raybatch.cluster.jobs_api.models import JobRequest
    from airflow_provider_raybatch.cluster.submit.resolve import Submitted


def submit(
    run: TaskRun,
    plan: JobPlan,
    store: Store,
    cancel_handler: CancelHandler,
    on_stale_state: OnStaleState,
    log: Log,
    *,
    leave_waiting: bool = False,
) -> tuple[Cluster, Submitted]:
    """Submit the job, or take the one that is there; stop what is left of earlier runs.

    :param cancel_handler: from here on a kill of the task stops the job.
    :param leave_waiting: raise :class:`NotReadyYet` where a cluster is to be waited for.
    :return: with the cluster that has the job.
    :raises RayBatchException: it was refused, or the cluster does not answer.
    """
    # A new cluster may need the nodes of theirs.
    first = run.place.makes_clusters and run.record.earlier is not None
    cancel_handler.concerns(run.place, run.id, None if run.place.embedded else store, plan.lease_terms)
    if first:
        _end_earlier(run, "", store, log)
    request = _submit_request(run, plan, store, cancel_handler, on_stale_state, log, leave_waiting)
    try:
        submitted = run_blocking(_submitted(request, run, cancel_handler))
    except RaybatchError:
        if run.place.makes_clusters:
            cancel_handler.end_if_killed(log)  # the cluster may be there already
        raise
    cluster = cancel_handler.cluster
    _log_submitted(submitted, cluster, run, log)
    cancel_handler.end_if_killed(log)
    if not first:
        _end_earlier(run, submitted.submission_id, store, log)
    return cluster, submitted


def _end_earlier(run: TaskRun, keep: str, store: Store, log: Log) -> None:
    if run.record.earlier != () and stop_earlier_runs(run, keep, log):
        try:
            forget_earlier(store, run.run_token)
        except RayBatchException as error:
            log.warning("The next attempt asks for jobs of earlier runs again: %s", error)


async def _submitted(request: SubmitRequest, run: TaskRun, cancel_handler: CancelHandler) -> Submitted:
    submitted = await run.place.submit(request)
    cancel_handler.posted(submitted.submission_id)
    return submitted


def _submit_request(
    run: TaskRun,
    plan: JobPlan,
    store: Store,
    cancel_handler: CancelHandler,
    on_stale_state: OnStaleState,
    log: Log,
    leave_waiting: bool,
) -> SubmitRequest:
    async def build(client: RayJobsClient, submission_id: str) -> JobRequest:
        run.deadline.refuse_if_passed()  # here, since a job that is there already may have a result
        request = await plan.build(client, submission_id)
        check_current(store, run.run_token)
        cancel_handler.posting(submission_id)
        return request

    def making() -> None:
        run.deadline.refuse_if_passed()
        check_current(store, run.run_token)
        cancel_handler.making()

    return SubmitRequest(
        run=run.id,
        fingerprint=plan.fingerprint,
        on_stale_state=on_stale_state,
        build=build,
        finished=plan.finished,
        on_cluster=cancel_handler.claimed,
        making=making,
        log=log,
        sizes=plan.sizes,
        cluster_wait=plan.cluster_wait,
        window=plan.window,
        deadline=run.deadline.earlier,
        leave_waiting=leave_waiting,
    )


def _log_submitted(submitted: Submitted, cluster: Cluster, run: TaskRun, log: Log) -> None:
    from airflow_provider_raybatch.cluster.submit.resolve import FIRST_JOB

    verb = "Submitted Ray job"
    if submitted.adopted:
        ended = submitted.info.status.is_terminal
        verb = "Found finished job" if ended else "Re-attached to running job"
    reason = submitted.reason
    if reason == FIRST_JOB and run.record.earlier != ():
        reason = "the first job of a new run"
    where = cluster.job_page(submitted.submission_id) or cluster.shown
    log.info("%s %s: %s (%s).", verb, submitted.submission_id, where, reason)
