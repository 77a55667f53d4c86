# SPDX-License-Identifier: Apache-2.0
"""Where a task comes back from the triggerer without its job's end, the job itself is asked."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import TaskDeferralTimeout

from airflow_provider_raybatch.cluster.jobs_api.blocking import run_blocking
from airflow_provider_raybatch.contract.failures import FailureClass, RaybatchError
from airflow_provider_raybatch.operators.attempt import Attempt
from airflow_provider_raybatch.operators.cancel_handler import CancelHandler
from airflow_provider_raybatch.operators.plan import DRIVER_GRACE, TaskRun

if TYPE_CHECKING:
    from airflow_provider_raybatch.cluster.follow.control import LeaseTerms
    from airflow_provider_raybatch.cluster.follow.loop import Log
    from airflow_provider_raybatch.cluster.follow.outcome import Outcome


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
    from airflow_provider_raybatch.cluster.follow.loop import latest_job
    from airflow_provider_raybatch.cluster.submit.resolve import FINGERPRINT

    try:
        run = attempt.recorded()
        if run is None or run.connection.embedded:
            return None  # what a private Ray ran ended with its attempt
        job = run_blocking(latest_job(run.connection.address(), run.key))
    except RaybatchError as error:
        log.error("The job can't be asked how it ended: %s", error)
        return None
    return None if job is None else run.handle(job.submission_id, job.metadata.get(FINGERPRINT))


def recheck_job(
    attempt: Attempt,
    known: Outcome,
    submission_id: str,
    cancel_handler: CancelHandler,
    control: Callable[[TaskRun, str], LeaseTerms | None],
    log: Log,
    *,
    poll_interval: float,
    stop_at_deadline: bool,
) -> Outcome:
    """The job's outcome; `known`, the trigger's, if the cluster doesn't answer.

    A job that still runs is followed from here if no retry would take it over.

    :param cancel_handler: from here on a kill of the task stops the job.
    :param control: what a follower tells the job of a submission id.
    """
    from airflow_provider_raybatch.cluster.follow.loop import Followed, recheck

    ti, store = attempt.context["ti"], attempt.context["task_state_store"]
    try:
        run = attempt.recorded()
        if run is None:
            return known
        address, deadline = run.connection.address(), run.deadline.earlier
        cancel_handler.concerns(address, run.key, store, partial(control, run), submission_id, run.mark_key)
        job = Followed(
            submission_id=submission_id,
            session_name=None,
            poll_interval=poll_interval,
            # A driver that ends itself gets some seconds more.
            deadline=None if deadline is None else deadline + DRIVER_GRACE,
            stop_at_deadline=stop_at_deadline,
            from_start=False,
            lease=cancel_handler.lease_of(submission_id),
        )
        retries_left = ti.try_number <= ti.max_tries
        return run_blocking(recheck(address, job, known, log, leave_to_a_retry=retries_left))
    except RaybatchError as error:
        log.error("The job can't be asked how it ended: %s", error)
        return known
