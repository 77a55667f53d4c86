# SPDX-License-Identifier: Apache-2.0
"""Where a task comes back from the triggerer without its job's end, the job itself is asked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import TaskDeferralTimeout

from airflow_provider_raybatch.cluster.jobs_api.blocking import run_blocking
from airflow_provider_raybatch.contract.failures import FailureClass, RaybatchError
from airflow_provider_raybatch.operators.attempt import Attempt

if TYPE_CHECKING:
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
    try:
        run = attempt.recorded()
        found = None if run is None else run_blocking(run.place.latest_job(run.id))
    except RaybatchError as error:
        log.error("The job can't be asked how it ended: %s", error)
        return None
    if run is None or found is None:
        return None
    return run.handle(found.cluster, found.submission_id, found.fingerprint)
