# SPDX-License-Identifier: Apache-2.0
"""`RayJobTrigger`: follows a Ray job while its task is deferred."""

from __future__ import annotations

import asyncio
import time
import traceback
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Any

from airflow.sdk.log import amask_secret
from airflow.triggers.base import TriggerEvent

from airflow_provider_raybatch.cluster.follow.control import Lease, LeaseTerms
from airflow_provider_raybatch.cluster.follow.loop import follow_to_the_end, shorten_lease
from airflow_provider_raybatch.cluster.follow.outcome import Outcome
from airflow_provider_raybatch.cluster.follow.poll import Followed
from airflow_provider_raybatch.cluster.jobs_api.errors import ClusterUnreachableError
from airflow_provider_raybatch.contract.failures import FailureClass, RaybatchError, SpecError
from airflow_provider_raybatch.contract.text import all_storable, clean, plain_reason
from airflow_provider_raybatch.exceptions import RayBatchException
from airflow_provider_raybatch.places.choosing import acluster_of
from airflow_provider_raybatch.triggers.killable import KillableTrigger

if TYPE_CHECKING:
    from airflow_provider_raybatch.places.place import Cluster

_RESTARTED_AFTER = 300.0
_CONNECTION_WAITS = (1.0, 5.0, 30.0, 60.0)


class RayJobTrigger(KillableTrigger):
    """Follows a job, writes its driver's lines into the task's log, and fires once, when the job has ended.

    :param session_name: the Ray session that took the job; ``None`` stands for the present one.
    :param poll_interval: seconds between two polls, default 10.
    :param deadline: epoch seconds at which an unfinished job is given up; ``None`` for no deadline.
    :param cancel_on_kill: stop the job when a user marks or clears the deferred task; default yes.
    :param cancel_on_timeout: stop the job at its deadline; default yes.
    :param deferred_at: epoch seconds; a trigger that starts much later doesn't write the whole log again.
    :param handle: plain data that the operator gets back with the event.
    :param lease_terms: fields of a batch inference's ``LeaseTerms``. Its key is secret; Airflow encrypts a
        trigger's arguments in its database and leaves them out of its API.
    :param ray_cluster: of a job that has no connection: where its cluster is, with the secrets to reach it.
    """

    def __init__(
        self,
        *,
        ray_conn_id: str,
        submission_id: str,
        session_name: str | None = None,
        poll_interval: float = 10.0,
        deadline: float | None = None,
        cancel_on_kill: bool = True,
        cancel_on_timeout: bool = True,
        deferred_at: float | None = None,
        handle: Mapping[str, Any] | None = None,
        lease_terms: Mapping[str, Any] | None = None,
        ray_cluster: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.ray_conn_id = ray_conn_id
        self.submission_id = submission_id
        self.session_name = session_name
        self.poll_interval = poll_interval
        self.deadline = deadline
        self.cancel_on_kill = cancel_on_kill
        self.cancel_on_timeout = cancel_on_timeout
        self.deferred_at = deferred_at
        self.handle = dict(handle or {})
        self.lease_terms = None if lease_terms is None else dict(lease_terms)
        self.ray_cluster = None if ray_cluster is None else dict(ray_cluster)
        self._cluster: Cluster | None = None
        self._lease = None if self.lease_terms is None else Lease(LeaseTerms(**self.lease_terms))

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Fire once, with the outcome as plain data (:meth:`Outcome.from_json` reads it)."""
        outcome = await self._follow()
        event = all_storable({"outcome": outcome.to_json(), "handle": self.handle})
        yield TriggerEvent(event)  # type: ignore[no-untyped-call]

    @property
    def followed(self) -> str:
        """See :class:`KillableTrigger`."""
        return f"job {self.submission_id}"

    async def stop_followed(self, seconds: float) -> None:
        """See :class:`KillableTrigger`."""
        cluster = await self._known_cluster()
        await cluster.stop(self.submission_id, self.log, timeout=seconds)

    async def leave_in_doubt(self) -> None:
        """See :class:`KillableTrigger`."""
        if self._lease is None:
            self.log.warning(
                "Airflow did not say whether a user ended the task, so job %s keeps running. If it is not "
                "wanted, stop it on the Ray dashboard.",
                self.submission_id,
            )
            return
        seconds = await shorten_lease((await self._known_cluster()).address, self._lease)
        self.log.warning(
            "Airflow did not say whether a user ended the task, so job %s keeps running, and ends itself "
            "unless a task follows it within %.0f s.",
            self.submission_id,
            seconds,
        )

    async def _known_cluster(self) -> Cluster:
        return self._cluster or await self._read_cluster()

    async def _read_cluster(self) -> Cluster:
        cluster = await acluster_of(self.ray_conn_id, self.ray_cluster, self.submission_id)
        for secret in cluster.secrets:
            await amask_secret(secret)
        return cluster

    async def _follow(self) -> Outcome:
        try:
            self._cluster = cluster = await self._find_cluster()
            if (known := await cluster.known_end(self.log)) is not None:
                return known
            job = Followed(
                submission_id=self.submission_id,
                session_name=self.session_name,
                poll_interval=self.poll_interval,
                deadline=self.deadline,
                stop_at_deadline=self.cancel_on_timeout,
                from_start=self.deferred_at is None or time.time() - self.deferred_at < _RESTARTED_AFTER,
                lease=self._lease,
                host=cluster.host,
            )
            outcome = await follow_to_the_end(cluster.address, job, self.log)
            await cluster.log_ends(self.log)
            return outcome
        except (RayBatchException, SpecError, ClusterUnreachableError) as error:
            # The job was submitted through this connection, so the error may be temporary, or only on this
            # machine. A retry finds the job again.
            return Outcome("unreachable", FailureClass.CLUSTER_UNREACHABLE, str(error))
        except RaybatchError as error:
            return Outcome("failed", error.failure_class, str(error))
        except Exception as error:
            # Airflow would store the traceback as it is. Text that its database refuses ends the triggerer,
            # at each start again.
            self.log.error("%s", clean(traceback.format_exc()))
            why = clean(plain_reason(error))
            message = f"The trigger that followed the job failed ({why})."
            return Outcome("unreachable", FailureClass.INTERNAL, message)

    async def _find_cluster(self) -> Cluster:
        # Airflow also reports "not found" while its API server is down, and the connection existed when the
        # task deferred.
        for wait in _CONNECTION_WAITS:
            try:
                return await self._read_cluster()
            except (RayBatchException, ClusterUnreachableError) as error:
                self.log.warning("%s Asking again in %.0f s.", error, wait)
            await asyncio.sleep(wait)
        return await self._read_cluster()
