# SPDX-License-Identifier: Apache-2.0
"""A task comes back from the triggerer without its job's end: the job itself is asked first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_provider_raybatch.contract.failures import RaybatchError
from airflow_provider_raybatch.hooks.connection import RayConnection

if TYPE_CHECKING:
    from airflow_provider_raybatch.cluster.follow.control import Control
    from airflow_provider_raybatch.cluster.follow.loop import Log
    from airflow_provider_raybatch.cluster.follow.outcome import Outcome
    from airflow_provider_raybatch.cluster.submit.resolve import SubmissionKey

_DRIVER_GRACE = 30.0


@dataclass(frozen=True)
class Resumption:
    """What is known of the job when its task resumes.

    :param deadline: epoch seconds, of the job; a driver that ends itself gets some seconds more.
    :param control: what a follower tells the job of a submission id.
    :param poll_interval: seconds between two looks, should the job be followed from here.
    :param stop_at_deadline: whether a job that runs past its deadline is stopped.
    :param retries_left: whether another attempt would take the job over.
    """

    connection: RayConnection
    key: SubmissionKey
    deadline: float | None
    control: Callable[[str], Control | None]
    poll_interval: float
    stop_at_deadline: bool
    retries_left: bool

    def latest_handle(self, log: Log) -> dict[str, Any] | None:
        """The handle of the run's latest job; ``None`` where there is none, or the cluster doesn't say."""
        from airflow_provider_raybatch.cluster.follow.loop import latest_job
        from airflow_provider_raybatch.cluster.jobs_api.blocking import run_blocking
        from airflow_provider_raybatch.cluster.submit.resolve import FINGERPRINT

        if self.connection.embedded:
            return None  # what it ran ended with its attempt
        try:
            job = run_blocking(latest_job(self.connection.address(), self.key))
        except RaybatchError as error:
            log.error("The job can't be asked how it ended: %s", error)
            return None
        if job is None:
            return None
        return {
            "submission_id": job.submission_id,
            "dashboard_url": self.connection.job_page(job.submission_id),
            "run_token": self.key.run_token,
            "fingerprint": job.metadata.get(FINGERPRINT),
        }

    def look_again(self, told: Outcome, submission_id: str, log: Log) -> Outcome:
        """What became of the job; `told`, the trigger's word, where the cluster doesn't say."""
        from airflow_provider_raybatch.cluster.follow.loop import Followed, look_again
        from airflow_provider_raybatch.cluster.jobs_api.blocking import run_blocking

        job = Followed(
            submission_id=submission_id,
            session_name=None,
            poll_interval=self.poll_interval,
            deadline=None if self.deadline is None else self.deadline + _DRIVER_GRACE,
            stop_at_deadline=self.stop_at_deadline,
            from_start=False,
            control=self.control(submission_id),
        )
        try:
            address = self.connection.address()
            return run_blocking(look_again(address, job, told, log, leave_to_a_retry=self.retries_left))
        except RaybatchError as error:
            log.error("The job can't be asked how it ended: %s", error)
            return told
