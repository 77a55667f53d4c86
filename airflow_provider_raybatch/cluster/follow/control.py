# SPDX-License-Identifier: Apache-2.0
"""A follower's side of the control channel: the orders that keep a job's lease, and the mark of a clear.

Both are packages in the cluster's store, under names derived from a key. The Jobs API lets a follower
overwrite them. The driver reads the orders, and the run's next attempt looks for the mark.
"""

from __future__ import annotations

import random
import secrets as random_tokens
import time
from dataclasses import dataclass, field, replace

from airflow_provider_raybatch.cluster.jobs_api.address import ClusterAddress
from airflow_provider_raybatch.cluster.jobs_api.client import RayJobsClient
from airflow_provider_raybatch.cluster.jobs_api.errors import ClusterError
from airflow_provider_raybatch.contract.submission import (
    FollowerCommand,
    cleared_package,
    order_package,
    write_order,
)

_LONGEST_INTERVAL = 300.0
_ORDERS_A_LEASE = 10
_IN_DOUBT = 600.0
"""Seconds beyond the pause before a retry, in which a next attempt must take the job of a killed one over."""


@dataclass(frozen=True)
class LeaseTerms:
    """What one attempt of a task tells its job, see :class:`FollowerCommand`.

    :param key: of the job; secret, also where a trigger keeps these fields.
    :param retry_pause: seconds until Airflow begins the task's next attempt, at most.
    """

    key: str = field(repr=False)
    attempt: int
    deadline: float | None = None
    orphan_timeout: float = 0.0
    retry_pause: float = 0.0

    def in_doubt(self) -> LeaseTerms:
        """The same for a kill that can't learn whether a next attempt takes the job over."""
        enough = self.retry_pause + _IN_DOUBT
        return replace(self, orphan_timeout=min(self.orphan_timeout or enough, enough))

    @property
    def interval(self) -> float:
        """Seconds between two orders; several may be lost before the job counts as an orphan."""
        if not self.orphan_timeout:
            return _LONGEST_INTERVAL
        return min(_LONGEST_INTERVAL, self.orphan_timeout / _ORDERS_A_LEASE)


class Lease:
    """Renews a job's lease while it is followed: one order at the first poll, then one each interval."""

    def __init__(self, terms: LeaseTerms) -> None:
        self.terms = terms
        self._next = 0.0
        self._warned = False

    async def renew(self, client: RayJobsClient) -> str | None:
        """Send an order if it is time; following goes on if that fails.

        :return: a warning, once.
        """
        now = time.monotonic()
        if now < self._next:
            return None
        self._next = now + self.terms.interval * random.uniform(0.5, 1)  # else all jobs' orders stay together
        try:
            await self._send(client)
        except ClusterError as error:
            if not self._warned:
                self._warned = True
                return f"The job's lease could not be renewed: {error} This is tried again."
        return None

    async def shorten(self, client: RayJobsClient) -> float:
        """Shorten the lease for a kill in doubt; the next attempt's orders replace this.

        :return: seconds that the job keeps.
        :raises ClusterError: the order could not be sent.
        """
        self.terms = self.terms.in_doubt()
        await self._send(client)
        return self.terms.orphan_timeout

    async def _send(self, client: RayJobsClient) -> None:
        sent = None
        while sent is not self.terms:  # a kill in another thread may shorten it while an order is under way
            sent = self.terms
            order = FollowerCommand(
                attempt=sent.attempt,
                nonce=random_tokens.token_hex(8),
                deadline=sent.deadline,
                orphan_timeout=sent.orphan_timeout,
            )
            uri = f"gcs://{order_package(sent.key)}"
            await client.has_package(uri)  # makes Ray delete the order ten minutes after the last one
            await client.upload_package(uri, write_order(order, sent.key))


async def mark_cleared(address: ClusterAddress, run_key: str) -> None:
    """Tell the run's next attempt that a user has cleared the task while this one ran.

    Airflow's store takes nothing from such an attempt, and its counters may show a retry to the next one.

    :raises ClusterError: the cluster does not take it.
    """
    async with RayJobsClient(address) as client:
        await client.upload_package(f"gcs://{cleared_package(run_key)}", b"cleared")


async def was_cleared(address: ClusterAddress, run_key: str) -> bool:
    """Whether :func:`mark_cleared` was called; ``False`` if the cluster does not say.

    The question makes Ray drop the mark ten minutes later.
    """
    try:
        async with RayJobsClient(address) as client:
            return await client.has_package(f"gcs://{cleared_package(run_key)}")
    except ClusterError:
        return False
