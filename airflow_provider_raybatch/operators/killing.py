# SPDX-License-Identifier: Apache-2.0
"""What a kill of the attempt stops, as far as the attempt has come."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_provider_raybatch.cluster.jobs_api.blocking import run_blocking
from airflow_provider_raybatch.contract.failures import FailureClass, RaybatchError
from airflow_provider_raybatch.exceptions import RayBatchException

if TYPE_CHECKING:
    from airflow_provider_raybatch.cluster.follow.loop import Log
    from airflow_provider_raybatch.cluster.jobs_api.address import ClusterAddress
    from airflow_provider_raybatch.cluster.submit.resolve import SubmissionKey

_TIMEOUT = 60.0


@dataclass
class _Target:
    """What there is to stop.

    :param submission_id: of the job that counts, as soon as that is known.
    :param posts: whether that job is being submitted, so that the cluster may not know it yet.
    """

    address: ClusterAddress
    key: SubmissionKey
    submission_id: str | None = None
    posts: bool = False

    async def stop(self) -> list[str]:
        from airflow_provider_raybatch.cluster.follow.loop import stop_at_once, stop_jobs_of

        if self.submission_id is None:
            return await stop_jobs_of(self.address, self.key, timeout=_TIMEOUT)
        stopped = await stop_at_once(self.address, self.submission_id, lambda: self.posts, timeout=_TIMEOUT)
        return [self.submission_id] if stopped else []


class Killing:
    """Told how far an attempt is, and called where it is killed, which may be between any two lines of it.

    A kill before there is a job is remembered, and ends the attempt before it makes one.
    """

    def __init__(self) -> None:
        self._target: _Target | None = None
        self._killed = False

    def concerns(self, address: ClusterAddress, key: SubmissionKey, submission_id: str | None = None) -> None:
        """From here on there may be a job.

        :param submission_id: of the job that is there; by default whichever there is of `key`.
        """
        self._target = _Target(address, key, submission_id)

    def concerns_nothing(self) -> None:
        """From here on a kill stops nothing."""
        self._target = None

    def posting(self, submission_id: str) -> None:
        """The job is submitted next.

        :raises RayBatchException: the attempt is being killed.
        """
        if self._target is not None:
            self._target.submission_id, self._target.posts = submission_id, True
            if self._killed:  # after the line above, so that a kill sees that line or is seen here
                self._target.posts = False
                raise _killed()

    def posted(self, submission_id: str) -> None:
        """The cluster has the job, or had it before."""
        if self._target is not None:
            self._target.submission_id, self._target.posts = submission_id, False

    def end_if_killed(self, log: Log) -> None:
        """For after the submission.

        :raises RayBatchException: the attempt was killed meanwhile; the job is stopped.
        """
        if self._killed:
            self.kill(log)  # the kill came while there was nothing to stop yet
            raise _killed()

    def kill(self, log: Log) -> None:
        """Stop the job, and wait until it has ended: Airflow's supervisor leaves five seconds for it.

        Runs in a signal handler.
        """
        self._killed = True
        if self._target is None:
            return
        log.info("The task is being killed; stopping its job.")
        try:
            stopped = run_blocking(self._target.stop())
        except RaybatchError as error:
            log.error("The job could not be stopped: %s", error)
        else:
            log.info("Stopped: %s.", ", ".join(stopped) or "nothing was running")


def _killed() -> RayBatchException:
    return RayBatchException("The task was killed while it submitted its job.", FailureClass.CANCELLED)
