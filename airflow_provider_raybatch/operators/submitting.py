# SPDX-License-Identifier: Apache-2.0
"""An attempt submits its job, or takes the one that is there, and ends what earlier runs of its task left."""

from __future__ import annotations

from dataclasses import dataclass
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
    from airflow_provider_raybatch.cluster.jobs_api.address import ClusterAddress
    from airflow_provider_raybatch.cluster.jobs_api.models import JobRequest
    from airflow_provider_raybatch.cluster.submit.resolve import Submitted


@dataclass(frozen=True)
class Submitting:
    """Of one attempt, on one cluster.

    :param address: of the cluster.
    :param run: the attempt.
    :param plan: what is to run.
    :param store: has the record of the run.
    :param cancel_handler: from here on a kill of the task stops the job.
    :param on_stale_state: what to do about a job of the same run that was submitted with other arguments.
    """

    address: ClusterAddress
    run: TaskRun
    plan: JobPlan
    store: Store
    cancel_handler: CancelHandler
    on_stale_state: OnStaleState
    log: Log

    def submit(self) -> Submitted:
        """Submit the job, or take the one that is there; stop what is left of earlier runs.

        :raises RayBatchException: it was refused, or the cluster does not answer.
        """
        from airflow_provider_raybatch.cluster.submit.resolve import FIRST_JOB

        run = self.run
        store = None if run.connection.embedded else self.store
        self.cancel_handler.concerns(self.address, run.key, store, self.plan.control, run_key=run.mark_key)
        submitted = run_blocking(self._submit_or_adopt())
        verb = "Submitted Ray job"
        if submitted.adopted:
            ended = submitted.info.status.is_terminal
            verb = "Found finished job" if ended else "Re-attached to running job"
        reason = submitted.reason
        if reason == FIRST_JOB and run.record.earlier != ():
            reason = "a new run began, as after each clear"
        where = run.connection.job_page(submitted.submission_id) or self.address.shown
        self.log.info("%s %s: %s (%s).", verb, submitted.submission_id, where, reason)
        self.cancel_handler.end_if_killed(self.log)
        if run.record.earlier != () and stop_earlier_runs(
            self.address, run, submitted.submission_id, self.log
        ):
            try:
                forget_earlier(self.store, run.run_token)
            except RayBatchException as error:
                self.log.warning("The next attempt asks for jobs of earlier runs again: %s", error)
        return submitted

    async def _submit_or_adopt(self) -> Submitted:
        from airflow_provider_raybatch.cluster.jobs_api.client import RayJobsClient
        from airflow_provider_raybatch.cluster.submit.resolve import submit_or_adopt

        run, plan = self.run, self.plan
        async with RayJobsClient(self.address) as client:
            finished = plan.finished

            async def build(submission_id: str) -> JobRequest:
                run.deadline.refuse_if_passed()  # here, since a job that is there already may have a result
                request = await plan.build(client, submission_id)
                check_current(self.store, run.run_token)
                self.cancel_handler.posting(submission_id)
                return request

            submitted = await submit_or_adopt(
                client,
                run.key,
                plan.fingerprint,
                build,
                self.on_stale_state,
                None if finished is None else lambda info: finished(client, info),
            )
            self.cancel_handler.posted(submitted.submission_id)
            return submitted
