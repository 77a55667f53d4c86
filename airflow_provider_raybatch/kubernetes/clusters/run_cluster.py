# SPDX-License-Identifier: Apache-2.0
"""A cluster that was made for one run: it is kept while the job is followed, and goes with it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from airflow_provider_raybatch.cluster.follow.loop import stop_at_once
from airflow_provider_raybatch.cluster.follow.outcome import FollowState, Outcome, Verdict
from airflow_provider_raybatch.cluster.jobs_api.client import RayJobsClient
from airflow_provider_raybatch.contract.failures import FailureClass, RaybatchError, SpecError
from airflow_provider_raybatch.contract.submission import STOP_GRACE
from airflow_provider_raybatch.contract.text import clean
from airflow_provider_raybatch.kubernetes.cluster import KubeRayCluster
from airflow_provider_raybatch.kubernetes.clusters.heartbeat import RunHeartbeat
from airflow_provider_raybatch.kubernetes.kuberay.lifecycle import RELEASE_TIMEOUT, bound, release, state
from airflow_provider_raybatch.kubernetes.kuberay.rayjob import ClusterClaim
from airflow_provider_raybatch.kubernetes.kuberay.readiness import READY, rayjob_end
from airflow_provider_raybatch.kubernetes.kuberay.waiting import (
    read_pod_exits,
    wait_for_cluster,
)
from airflow_provider_raybatch.places.place import STOP_TIMEOUT, Cluster

if TYPE_CHECKING:
    from airflow_provider_raybatch.cluster.follow.loop import Log
    from airflow_provider_raybatch.cluster.jobs_api.address import ClusterAddress
    from airflow_provider_raybatch.kubernetes.api.client import KubernetesClient
    from airflow_provider_raybatch.kubernetes.connection import Kubernetes
    from airflow_provider_raybatch.kubernetes.kuberay.rayjob import RayJobState

_GONE_SECONDS = 10.0
_ORDER_SECONDS = 1.5
"""For the order to stop, before the cluster is bound: of the five that Airflow's supervisor leaves."""
_BOUND = STOP_GRACE + 60.0
"""Seconds after the order to stop at which KubeRay ends the cluster, whoever has died meanwhile."""


class RunCluster(Cluster):
    """The cluster of a RayJob.

    :param token: of the cluster; empty where it is not known, so that the job on it can't be reached.
    :param window: seconds that it may live without a follower; ``None`` for ever.
    :param batch: whether its job writes events; then KubeRay's status alone does not count as a result.
    :param has_succeeded: whether KubeRay says that its job has succeeded, so no further request is needed.
    """

    ends_with_job = True

    def __init__(
        self,
        kubernetes: Kubernetes,
        claim: ClusterClaim,
        token: str,
        window: float | None,
        *,
        submission_id: str,
        batch: bool = True,
        has_succeeded: bool = False,
    ) -> None:
        self.kubernetes, self.claim, self.token, self.window = kubernetes, claim, token, window
        self.submission_id, self.batch, self.uid = submission_id, batch, claim.uid
        self.ray_cluster, self.has_succeeded = "", has_succeeded
        self._address: ClusterAddress | None = None
        self.facts = {**kubernetes.definition.to_json(), "claim": claim.to_json()}
        self.secrets = (token,) if token else ()
        self._heartbeat = RunHeartbeat(
            kubernetes, claim, submission_id, window, batch=batch, ray_cluster=lambda: self.ray_cluster
        )
        self.host = self._heartbeat

    @property
    def address(self) -> ClusterAddress:
        """Of its Jobs API; only once its head is ready."""
        if self._address is None:
            raise RaybatchError(f"The cluster of RayJob {self.claim.name} is not ready yet.")
        return self._address

    @address.setter
    def address(self, address: ClusterAddress) -> None:
        self._address = address

    async def locate(self, api: KubernetesClient, rayjob: RayJobState) -> RunCluster:
        """Find its RayCluster, and its Jobs API if its head may answer."""
        self.ray_cluster = rayjob.ray_cluster
        if self.token and (rayjob.job_id or rayjob.deployment_status in READY):
            self._address = await self.kubernetes.address(api, rayjob.ray_cluster, self.token)
        return self

    def answers(self, ray_cluster: str, address: ClusterAddress) -> None:
        """The Jobs API of the RayCluster that KubeRay has made for it answers."""
        self.ray_cluster, self.address = ray_cluster, address

    @property
    def shown(self) -> str:
        """See :attr:`Cluster.shown`."""
        return f"RayJob {self.claim.name}" if self._address is None else self._address.shown

    def job_page(self, submission_id: str) -> str | None:
        """See :meth:`Cluster.job_page`."""
        page = None if self._address is None else self.kubernetes.page(self._address)
        return page and f"{page.rstrip('/')}/#/jobs/{submission_id}"

    def for_trigger(self) -> dict[str, Any]:
        """See :meth:`Cluster.for_trigger`."""
        return {
            **(self.facts or {}),
            "token": self.token,
            "window": self.window,
            "batch": self.batch,
        }

    async def stop(
        self,
        submission_id: str,
        log: Log,
        may_come: Callable[[], bool] = lambda: False,
        timeout: float = STOP_TIMEOUT,  # noqa: ASYNC109 - handed on to a loop that tells why it gave up
    ) -> bool:
        """Order the job's stop, bound the cluster, wait until the job has ended, and delete the cluster.

        In this order: what follows the first two goes on without this process.
        """
        stopping = asyncio.create_task(self._stop_job(submission_id, may_come, timeout))
        await asyncio.wait([stopping], timeout=_ORDER_SECONDS)
        with suppress(RaybatchError):  # deleting follows, and KubeRay has its own bounds
            async with self.kubernetes.api(hurried=True) as api:
                if await bound(api, self.claim, _BOUND) is None:
                    stopping.cancel()  # the cluster has gone, and no job can answer
                    await asyncio.wait([stopping])
                    return False
        try:
            return await stopping
        except RaybatchError as error:
            log.warning("The job on the cluster could not be stopped: %s", error)
            return True  # it ends with the cluster
        finally:
            await self.release(log, _GONE_SECONDS)

    @property
    def is_reachable(self) -> bool:
        """Whether the job on it can be asked and stopped."""
        return self._address is not None

    async def stop_job(self) -> None:
        """Stop the job, and keep the cluster.

        :raises ClusterError: it does not end, or gives no answer.
        """
        await self._stop_job(self.submission_id, lambda: False, STOP_TIMEOUT)

    async def _stop_job(self, submission_id: str, may_come: Callable[[], bool], seconds: float) -> bool:
        return self._address is not None and await stop_at_once(
            self._address, submission_id, may_come, seconds
        )

    async def known_end(self, log: Log) -> Outcome | None:
        """See :meth:`Cluster.known_end`."""
        if self.is_reachable:
            return None
        told = f"The cluster of RayJob {self.claim.name} can't be reached."
        silent = Outcome("unreachable", FailureClass.CLUSTER_UNREACHABLE, told)
        verdict = await self._heartbeat.looked(Verdict(FollowState(), outcome=silent))
        for line in verdict.lines:
            log.info("%s", line.text)
        return verdict.outcome

    async def log_ends(self, log: Log) -> None:
        """See :meth:`Cluster.log_ends`."""
        if not self.ray_cluster:
            return
        try:
            async with self.kubernetes.api() as api:
                exits = await read_pod_exits(api, self.ray_cluster)
        except RaybatchError as error:
            log.warning("How the cluster's pods ended can't be asked: %s", error)
            return
        for line in self._heartbeat.new_lines(exits.lines):
            log.info("%s", clean(line))

    async def release(self, log: Log, seconds: float = RELEASE_TIMEOUT) -> None:
        """Delete the RayJob, and with it all that is the cluster's."""
        try:
            async with self.kubernetes.api() as api:
                left = await release(api, self.claim, seconds)
        except RaybatchError as error:
            log.error(
                "The cluster of RayJob %s could not be deleted; KubeRay ends it by its deadlines: %s",
                self.claim.name,
                error,
            )
            return
        if left is None:
            log.info("RayJob %s and its cluster are deleted.", self.claim.name)
        else:
            log.warning("The cluster is deleted, but not gone yet: %s.", left)


async def run_cluster_of(kubernetes: Kubernetes, data: Mapping[str, Any], submission_id: str) -> RunCluster:
    """What :meth:`RunCluster.for_trigger` described, with its address if its head may answer.

    :raises ClusterError: Kubernetes gives no answer, or refuses.
    """
    claim = ClusterClaim.from_json(data["claim"])
    window, batch = data["window"], data["batch"]
    cluster = RunCluster(kubernetes, claim, data["token"], window, submission_id=submission_id, batch=batch)
    async with kubernetes.api() as api:
        rayjob = await state(api, claim)
        return cluster if rayjob is None else await cluster.locate(api, rayjob)


async def wait_until_ready(api: KubernetesClient, cluster: RunCluster, cluster_wait: float, log: Log) -> None:
    """Wait until the Jobs API of a claimed cluster answers, and give the cluster its address.

    :param cluster_wait: see :func:`wait_for_cluster`.
    :raises ClusterNotReadyError: it can't become ready, or was not in time.
    """

    async def answers(rayjob: RayJobState) -> str | None:
        address = await cluster.kubernetes.address(api, rayjob.ray_cluster, cluster.token)
        if address is None:
            return f"RayJob {rayjob.name}: its cluster is there, but Kubernetes does not show it yet."
        async with RayJobsClient(address) as client:
            await client.version()
        cluster.answers(rayjob.ray_cluster, address)
        return None

    def show(line: str) -> None:
        log.info("%s", clean(line))

    await wait_for_cluster(api, cluster.claim, cluster_wait=cluster_wait, show=show, answers=answers)


def made_by(facts: object) -> tuple[KubeRayCluster, ClusterClaim]:
    """What :attr:`Cluster.facts` described.

    :raises SpecError: it is something else.
    """
    try:
        assert isinstance(facts, Mapping)
        return KubeRayCluster.from_json(facts), ClusterClaim.from_json(facts["claim"])
    except (AssertionError, KeyError, TypeError):
        raise SpecError(
            "submission_id: its 'ray_cluster' is not what a RayJobOperator returned; give the whole of that."
        ) from None


async def outcome_of(kubernetes: Kubernetes, claim: ClusterClaim) -> Outcome | None:
    """How the job ended; ``None`` while it runs, or waits for its cluster.

    :raises ClusterError: Kubernetes gives no answer, or refuses.
    """
    async with kubernetes.api() as api:
        rayjob = await state(api, claim)
    if rayjob is None or rayjob.deleting:
        told = f"The RayJob {claim.name} was deleted; how its job ended is unknown."
        return Outcome("deleted", FailureClass.CANCELLED, told, ended=True)
    if rayjob.job_status == "SUCCEEDED":
        return Outcome("succeeded", None, "The job finished successfully.", ended=True)
    if rayjob.job_status == "STOPPED":
        return Outcome("stopped", FailureClass.CANCELLED, "The job was stopped.", ended=True)
    if not rayjob.terminal:
        return None
    failure_class, message = rayjob_end(rayjob)
    return Outcome("failed", failure_class, clean(message), ended=True)
