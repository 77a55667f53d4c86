# SPDX-License-Identifier: Apache-2.0
"""What a kill of the attempt stops, as far as the attempt has come."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_provider_raybatch.cluster.jobs_api.blocking import run_blocking
from airflow_provider_raybatch.contract.failures import FailureClass, RaybatchError
from airflow_provider_raybatch.exceptions import RayBatchException
from airflow_provider_raybatch.operators.run_record import Store, check_current

if TYPE_CHECKING:
    from airflow_provider_raybatch.cluster.follow.loop import Log
    from airflow_provider_raybatch.cluster.jobs_api.address import ClusterAddress
    from airflow_provider_raybatch.cluster.submit.resolve import SubmissionKey

_TIMEOUT = 60.0
_STORE_TIMEOUT = 2.0
"""Seconds for a look at the run record, of the five that Airflow's supervisor leaves."""


@dataclass
class _Target:
    """What there is to stop.

    :param store: has the record of the run; ``None`` for a job that no other attempt can follow.
    :param submission_id: of the job that counts, as soon as that is known.
    :param posts: whether that job is being submitted, so that the cluster may not know it yet.
    """

    address: ClusterAddress
    key: SubmissionKey
    store: Store | None
    submission_id: str | None = None
    posts: bool = False

    def why_not(self) -> str | None:
        """Why the job is to go on; ``None`` if it is this attempt's to stop.

        After a scheduler's death or missed heartbeats, Airflow begins the next attempt, which adopts the job,
        and ends this one later.
        """
        if self.store is None:
            return None
        found = [f"Airflow's task state store has not answered for {_STORE_TIMEOUT:g} s."]
        # In a thread of its own, since the signal may have interrupted a call that holds Airflow's lock.
        look = threading.Thread(target=self._look, args=(self.store, found), daemon=True)
        look.start()
        look.join(_STORE_TIMEOUT)
        return found[-1] if found else None

    def _look(self, store: Store, found: list[str]) -> None:
        try:
            check_current(store, self.key.run_token)
        except RayBatchException as error:
            found.append(str(error))
        else:
            found.clear()

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

    def concerns(
        self,
        address: ClusterAddress,
        key: SubmissionKey,
        store: Store | None,
        submission_id: str | None = None,
    ) -> None:
        """From here on there may be a job.

        :param store: has the record of the run; ``None`` for a job that no other attempt can follow.
        :param submission_id: of the job that is there; by default whichever there is of `key`.
        """
        self._target = _Target(address, key, store, submission_id)

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

        A job that the next attempt follows, or may follow, is left alone. Runs in a signal handler.
        """
        self._killed = True
        if self._target is None:
            return
        if (why := self._target.why_not()) is not None:
            log.info("The task is being killed, and its job goes on for the next attempt: %s", why)
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
