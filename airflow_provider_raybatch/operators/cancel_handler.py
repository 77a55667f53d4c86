# SPDX-License-Identifier: Apache-2.0
"""What a kill of an attempt stops, which depends on how far the attempt is."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from airflow_provider_raybatch.cluster.jobs_api.blocking import call_within, run_blocking
from airflow_provider_raybatch.contract.failures import FailureClass, RaybatchError
from airflow_provider_raybatch.exceptions import RayBatchException, RayBatchUnavailableException
from airflow_provider_raybatch.operators.run_record import Store, check_current

if TYPE_CHECKING:
    from airflow_provider_raybatch.cluster.follow.control import Lease, LeaseTerms
    from airflow_provider_raybatch.cluster.follow.loop import Log
    from airflow_provider_raybatch.places.place import Cluster, Place, RunRef

_TIMEOUT = 60.0
_MADE_SECONDS = 0.3
_STORE_TIMEOUT = 2.0
"""Seconds to read the run record, of the five that Airflow's supervisor leaves."""


@dataclass
class _Target:
    """The job that a kill stops; see :meth:`CancelHandler.concerns`.

    :param posts: whether the job is being submitted, or its cluster made, so that it may not be known yet.
    """

    place: Place
    run: RunRef
    store: Store | None
    lease_terms: Callable[[str], LeaseTerms | None] | None
    submission_id: str | None = None
    cluster: Cluster | None = None
    posts: bool = False
    leases: dict[str, Lease] = field(default_factory=dict)

    def check(self) -> None:
        """Check that the job still belongs to this attempt.

        After a scheduler's death or missed heartbeats, Airflow ends this attempt only after it has begun the
        next one, which adopts the job.

        :raises RayBatchUnavailableException: Airflow doesn't say.
        :raises RayBatchException: the job is the next attempt's.
        """
        store = self.store
        if store is None:
            return
        try:
            # In a thread of its own, since the signal may have interrupted a call that holds Airflow's lock.
            call_within(_STORE_TIMEOUT, lambda: check_current(store, self.run.key.run_token))
        except TimeoutError:
            raise RayBatchUnavailableException(
                f"task_state_store: it has not answered for {_STORE_TIMEOUT:g} s."
            ) from None

    def is_cleared(self) -> bool:
        """Whether a user has cleared the task while it ran; ``False`` if Airflow doesn't say."""
        from airflow_provider_raybatch.hooks.lookup import task_state

        task = self.run.key.task
        with suppress(Exception):
            state = call_within(
                _STORE_TIMEOUT, lambda: task_state(task.dag_id, task.run_id, task.task_id, task.map_index)
            )
            return state == "restarting"
        return False

    async def end_run(self, log: Log) -> list[str]:
        """Stop the job, and mark the clear for the next attempt: Airflow may count a clear as a retry."""
        # At the same time: the job must end even if the cluster refuses the mark.
        marking = asyncio.create_task(self.place.mark_cleared(self.run))
        try:
            return await self.stop(log)
        finally:
            with suppress(RaybatchError):
                await marking

    def lease_of(self, submission_id: str) -> Lease | None:
        from airflow_provider_raybatch.cluster.follow.control import Lease

        lease_terms = None if self.lease_terms is None else self.lease_terms(submission_id)
        return None if lease_terms is None else self.leases.setdefault(submission_id, Lease(lease_terms))

    async def shorten_lease(self) -> float | None:
        """Seconds after which the job now ends itself; ``None`` if no job listens."""
        from airflow_provider_raybatch.cluster.follow.loop import latest_job, shorten_lease

        name = self.submission_id
        cluster = self.cluster or await self.place.cluster_of(self.run)
        if cluster is None:
            return None
        if name is None:
            latest = await latest_job(cluster.address, self.run.key)
            name = None if latest is None else latest.submission_id
        lease = None if name is None else self.lease_of(name)
        return None if lease is None else await shorten_lease(cluster.address, lease)

    async def stop(self, log: Log) -> list[str]:
        if self.submission_id is not None and self.cluster is not None:
            name = self.submission_id
            stopped = await self.cluster.stop(name, log, lambda: self.posts, _TIMEOUT)
            return [name] if stopped else []
        deadline = time.monotonic() + _TIMEOUT
        while True:
            in_flight = self.posts  # before the question: the cluster may be there right after it
            ended = await self.place.stop_run(self.run, log, _TIMEOUT)
            if ended or not in_flight or time.monotonic() >= deadline:
                return ended
            await asyncio.sleep(_MADE_SECONDS)


class CancelHandler:
    """Knows how far an attempt is, and stops its job when it is killed, at whatever line that is.

    A kill before there is a job ends the attempt before it submits one.
    """

    def __init__(self) -> None:
        self._left_behind: Callable[[Log], None] | None = None
        self._target: _Target | None = None
        self._killed = False

    def begins(self, stop_left_behind: Callable[[Log], None]) -> None:
        """From here on a kill calls `stop_left_behind`, which stops what an earlier attempt has left."""
        self._left_behind = stop_left_behind

    def concerns(
        self,
        place: Place,
        run: RunRef,
        store: Store | None,
        lease_terms: Callable[[str], LeaseTerms | None] | None = None,
        submission_id: str | None = None,
        cluster: Cluster | None = None,
    ) -> None:
        """From here on there may be a job, which a kill stops.

        :param store: has the run record; ``None`` for a job that no other attempt can follow.
        :param lease_terms: what this attempt tells a job; ``None`` for one that doesn't listen.
        :param submission_id: of the job; by default the latest one of `run`.
        :param cluster: that has it; by default the one of `run`.
        """
        self._target = _Target(place, run, store, lease_terms, submission_id, cluster)
        self._left_behind = None

    def concerns_nothing(self) -> None:
        """From here on a kill stops nothing."""
        self._target = self._left_behind = None

    def lease_of(self, submission_id: str) -> Lease | None:
        """The lease of the job that this attempt renews; a kill in doubt shortens it."""
        return None if self._target is None else self._target.lease_of(submission_id)

    @property
    def cluster(self) -> Cluster:
        """The cluster of the job, once it is known."""
        if self._target is None or self._target.cluster is None:
            raise _killed()  # what was to be stopped is stopped
        return self._target.cluster

    @property
    def uid(self) -> str | None:
        """Of the latest cluster that was made for the job; ``None`` where that is not known."""
        cluster = None if self._target is None else self._target.cluster
        return None if cluster is None else cluster.uid

    def making(self) -> None:
        """A cluster for the job is made next.

        :raises RayBatchException: the attempt is being killed.
        """
        if self._target is not None:
            # What was there before has gone.
            self._target.cluster = self._target.submission_id = None
            self._target.posts = True
            if self._killed:  # as in `posting`
                self._target.posts = False
                raise _killed()

    def claimed(self, cluster: Cluster) -> None:
        """The cluster for the job is there, or comes; raises as :meth:`making`."""
        if self._target is not None:
            self._target.cluster, self._target.posts = cluster, False
            if self._killed and cluster.ends_with_job:
                raise _killed()

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
        """Stop the submitted job and raise ``RayBatchException`` if the attempt was killed meanwhile."""
        if self._killed:
            self.kill(log)  # the kill came while there was nothing to stop yet
            raise _killed()

    def kill(self, log: Log) -> None:
        """Stop the job, and wait until it has ended. Runs in a signal handler.

        A job that the next attempt follows goes on. One that a next attempt may follow gets a short lease,
        which that attempt renews.
        """
        self._killed = True
        target = self._target
        if target is None:
            if (stop := self._left_behind) is not None:
                with suppress(TimeoutError):  # in a thread, for the reason in `_Target.check`
                    call_within(_TIMEOUT, lambda: stop(log))
            return
        try:
            target.check()
        except RayBatchUnavailableException as error:
            _leave_in_doubt(target, error, log)
        except RayBatchException as error:
            if target.is_cleared():
                _stop(target.end_run(log), log)
            else:
                log.info("The task is being killed, and its job goes on for the next attempt: %s", error)
        else:
            _stop(target.stop(log), log)


def _stop(stop: Coroutine[Any, Any, list[str]], log: Log) -> None:
    log.info("The task is being killed; stopping its job.")
    try:
        stopped = run_blocking(stop)
    except RaybatchError as error:
        log.error("The job could not be stopped: %s", error)
    else:
        log.info("Stopped: %s.", ", ".join(stopped) or "nothing was running")


def _leave_in_doubt(target: _Target, why: RayBatchException, log: Log) -> None:
    log.warning("The task is being killed, and Airflow does not say whether a next attempt follows: %s", why)
    try:
        seconds = run_blocking(target.shorten_lease())
    except RaybatchError as error:
        log.error("The job's lease could not be shortened, so it runs until its own limits end it: %s", error)
    else:
        if seconds is None:
            log.warning("Its job goes on. If it is not wanted, stop it on the Ray dashboard.")
        else:
            log.info(
                "Its job goes on, and ends itself unless a next attempt follows it within %.0f s.", seconds
            )


def _killed() -> RayBatchException:
    return RayBatchException("The task was killed while it submitted its job.", FailureClass.CANCELLED)
