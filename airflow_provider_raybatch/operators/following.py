# SPDX-License-Identifier: Apache-2.0
"""Following a job from the worker, and coming back from the triggerer."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import TaskDeferralTimeout

from airflow_provider_raybatch.cluster.jobs_api.blocking import run_blocking
from airflow_provider_raybatch.contract.failures import FailureClass, RaybatchError
from airflow_provider_raybatch.operators.attempt import Attempt
from airflow_provider_raybatch.operators.cancel_handler import CancelHandler
from airflow_provider_raybatch.operators.plan import DEFERRAL_GRACE, DRIVER_GRACE, JobPlan, TaskRun

if TYPE_CHECKING:
    from airflow_provider_raybatch.cluster.follow.control import LeaseTerms
    from airflow_provider_raybatch.cluster.follow.loop import Log
    from airflow_provider_raybatch.cluster.follow.outcome import Outcome
    from airflow_provider_raybatch.cluster.follow.poll import Followed
    from airflow_provider_raybatch.cluster.submit.resolve import Submitted
    from airflow_provider_raybatch.operators.run_record import Store
    from airflow_provider_raybatch.places.place import Cluster
    from airflow_provider_raybatch.triggers.ray_job import RayJobTrigger

_LONGEST_DEFERRAL = 10 * 365 * 86400.0  # Airflow adds it to the present, which must stay a date


@dataclass(frozen=True)
class Follower:
    """Follows the job of an attempt; the parameters are the operator's."""

    poll_interval: float
    cancel_on_kill: bool
    cancel_handler: CancelHandler
    log: Log

    def follow(self, cluster: Cluster, run: TaskRun, plan: JobPlan, submitted: Submitted) -> Outcome:
        """How the job ended, after a wait for that."""
        from airflow_provider_raybatch.cluster.follow.loop import follow_to_the_end
        from airflow_provider_raybatch.cluster.follow.outcome import Outcome

        if cluster.has_succeeded:
            return Outcome("succeeded", None, "The job finished successfully.", ended=True)
        deadline = plan.followers_deadline(run.deadline.earlier)
        name, session_name = submitted.submission_id, submitted.session_name
        job = self._followed(cluster, name, session_name, deadline, from_start=not submitted.adopted)

        async def follow() -> Outcome:
            outcome = await follow_to_the_end(cluster.address, job, self.log)
            await cluster.log_ends(self.log)
            return outcome

        return run_blocking(follow())

    def deferral(
        self,
        ray_conn_id: str,
        cluster: Cluster,
        run: TaskRun,
        plan: JobPlan,
        submitted: Submitted,
        handle: Mapping[str, Any],
    ) -> tuple[RayJobTrigger, timedelta | None]:
        """The trigger that follows the job, and how long Airflow waits for it."""
        from airflow_provider_raybatch.triggers.ray_job import RayJobTrigger

        now, deadline = time.time(), plan.followers_deadline(run.deadline.earlier)
        left = max(0.0, (deadline or now) - now) + DEFERRAL_GRACE
        terms = None if plan.lease_terms is None else plan.lease_terms(submitted.submission_id)
        trigger = RayJobTrigger(
            ray_conn_id=ray_conn_id,
            submission_id=submitted.submission_id,
            session_name=submitted.session_name,
            poll_interval=self.poll_interval,
            deadline=deadline,
            cancel_on_kill=self.cancel_on_kill,
            deferred_at=now,
            handle=dict(handle),
            lease_terms=None if terms is None else asdict(terms),
            ray_cluster=cluster.for_trigger(),
        )
        return trigger, None if deadline is None else timedelta(seconds=min(left, _LONGEST_DEFERRAL))

    def recheck(
        self,
        run: TaskRun,
        known: Outcome,
        submission_id: str,
        store: Store,
        lease_terms: Callable[[str], LeaseTerms | None],
        *,
        retries_left: bool,
        batch: bool,
    ) -> Outcome:
        """The job's outcome; `known`, the trigger's, if the cluster has gone or doesn't answer.

        :raises ClusterError: the cluster can't be asked.
        """
        from airflow_provider_raybatch.cluster.follow.loop import recheck
        from airflow_provider_raybatch.cluster.follow.outcome import Outcome

        cluster = run_blocking(run.place.cluster_of(run.id, batch=batch))
        if cluster is None:
            return known
        if cluster.has_succeeded:
            return Outcome("succeeded", None, "The job finished successfully.", ended=True)
        self.cancel_handler.concerns(run.place, run.id, store, lease_terms, submission_id, cluster)
        at = run.deadline.earlier
        # A driver that ends itself gets some seconds more.
        deadline = None if at is None else at + DRIVER_GRACE
        job = self._followed(cluster, submission_id, None, deadline, from_start=False)
        return run_blocking(recheck(cluster.address, job, known, self.log, leave_to_a_retry=retries_left))

    def _followed(
        self,
        cluster: Cluster,
        submission_id: str,
        session_name: str | None,
        deadline: float | None,
        *,
        from_start: bool,
    ) -> Followed:
        from airflow_provider_raybatch.cluster.follow.poll import Followed

        return Followed(
            submission_id=submission_id,
            session_name=session_name,
            poll_interval=self.poll_interval,
            deadline=deadline,
            from_start=from_start,
            lease=self.cancel_handler.lease_of(submission_id),
            host=cluster.host,
        )


def outcome_without_trigger(error: Exception) -> Outcome:
    """What is known of a job whose trigger is gone.

    :param error: Airflow's, of the trigger.
    """
    from airflow_provider_raybatch.cluster.follow.outcome import Outcome

    if isinstance(error, TaskDeferralTimeout):
        message = f"the trigger did not end the job at its deadline ({error})."
        return Outcome("timeout", FailureClass.TIMEOUT, message)
    message = f"The trigger that followed the job failed ({error})."
    return Outcome("unreachable", FailureClass.INTERNAL, message)


def latest_handle(attempt: Attempt, log: Log) -> dict[str, Any] | None:
    """The handle of the run's latest job; ``None`` where there is none, or the cluster doesn't say."""
    try:
        run = attempt.recorded()
        found = None if run is None else run_blocking(run.place.latest_job(run.id))
    except RaybatchError as error:
        log.error("The job can't be asked how it ended: %s", error)
        return None
    if run is None or found is None:
        return None
    return run.handle(found.cluster, found.submission_id, found.fingerprint)
