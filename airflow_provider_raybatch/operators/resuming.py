# SPDX-License-Identifier: Apache-2.0
"""A task comes back from the triggerer without its job's end: the job itself is asked first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import TaskDeferralTimeout

from airflow_provider_raybatch.cluster.jobs_api.blocking import run_blocking
from airflow_provider_raybatch.contract.failures import FailureClass, RaybatchError
from airflow_provider_raybatch.operators.cancel_handler import CancelHandler
from airflow_provider_raybatch.operators.plan import DRIVER_GRACE, TaskRun
from airflow_provider_raybatch.operators.run_record import Store

if TYPE_CHECKING:
    from airflow_provider_raybatch.cluster.follow.control import LeaseTerms
    from airflow_provider_raybatch.cluster.follow.loop import Log
    from airflow_provider_raybatch.cluster.follow.outcome import Outcome


def without_trigger(error: Exception) -> Outcome:
    """What is known of a job whose trigger is gone.

    :param error: what Airflow says of the trigger.
    """
    from airflow_provider_raybatch.cluster.follow.outcome import Outcome

    if isinstance(error, TaskDeferralTimeout):
        message = f"the trigger did not end the job at its deadline ({error})."
        return Outcome("timeout", FailureClass.TIMEOUT, message)
    message = f"The trigger that followed the job failed ({error})."
    return Outcome("unreachable", FailureClass.INTERNAL, message)


@dataclass(frozen=True)
class Resumption:
    """Asks the cluster about a task's job.

    :param find_run: the attempt as it is on record, ``None`` where no job of its run is.
    :param control: what a follower tells the job of a submission id.
    :param poll_interval: seconds between two polls, should the job be followed from here.
    :param stop_at_deadline: whether a job that runs past its deadline is stopped.
    :param retries_left: whether another attempt would take the job over.
    :param cancel_handler: from here on a kill of the task stops the job.
    :param store: has the record of the run.
    """

    find_run: Callable[[], TaskRun | None]
    control: Callable[[TaskRun, str], LeaseTerms | None]
    poll_interval: float
    stop_at_deadline: bool
    retries_left: bool
    cancel_handler: CancelHandler
    store: Store
    log: Log

    def latest_handle(self) -> dict[str, Any] | None:
        """The handle of the run's latest job; ``None`` where there is none, or the cluster doesn't say."""
        from airflow_provider_raybatch.cluster.follow.loop import latest_job
        from airflow_provider_raybatch.cluster.submit.resolve import FINGERPRINT

        try:
            run = self.find_run()
            if run is None or run.connection.embedded:
                return None  # what a private Ray ran ended with its attempt
            job = run_blocking(latest_job(run.connection.address(), run.key))
        except RaybatchError as error:
            self.log.error("The job can't be asked how it ended: %s", error)
            return None
        return None if job is None else run.handle(job.submission_id, job.metadata.get(FINGERPRINT))

    def recheck(self, known: Outcome, submission_id: str) -> Outcome:
        """The job's outcome; `known`, the trigger's, if the cluster doesn't answer."""
        from airflow_provider_raybatch.cluster.follow.loop import recheck
        from airflow_provider_raybatch.cluster.follow.poll import Followed

        try:
            run = self.find_run()
            if run is None:
                return known
            address, deadline = run.connection.address(), run.deadline.earlier
            control = partial(self.control, run)
            self.cancel_handler.concerns(address, run.key, self.store, control, submission_id, run.mark_key)
            job = Followed(
                submission_id=submission_id,
                session_name=None,
                poll_interval=self.poll_interval,
                # A driver that ends itself gets some seconds more.
                deadline=None if deadline is None else deadline + DRIVER_GRACE,
                stop_at_deadline=self.stop_at_deadline,
                from_start=False,
                lease=self.cancel_handler.lease_of(submission_id),
            )
            return run_blocking(recheck(address, job, known, self.log, leave_to_a_retry=self.retries_left))
        except RaybatchError as error:
            self.log.error("The job can't be asked how it ended: %s", error)
            return known
