# SPDX-License-Identifier: Apache-2.0
"""Clusters that KubeRay makes, one for each job of a run."""

from __future__ import annotations

import math
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from airflow_provider_raybatch.cluster.jobs_api.client import RayJobsClient
from airflow_provider_raybatch.cluster.jobs_api.models import JobStatus
from airflow_provider_raybatch.cluster.submit.resolve import Submitted
from airflow_provider_raybatch.contract.base import seconds_of
from airflow_provider_raybatch.contract.failures import RaybatchError
from airflow_provider_raybatch.contract.text import json_digest
from airflow_provider_raybatch.kubernetes.clusters.run_cluster import RunCluster, wait_until_ready
from airflow_provider_raybatch.kubernetes.kuberay.claim import ClaimResult, ClusterPlan
from airflow_provider_raybatch.kubernetes.kuberay.lifecycle import (
    claim_of,
    clusters_of_run,
    release_older,
    state,
)
from airflow_provider_raybatch.kubernetes.kuberay.manifest import (
    Deadlines,
    cluster_token,
    rayjob_manifest,
    secret_manifest,
)
from airflow_provider_raybatch.kubernetes.kuberay.pods import worker_counts
from airflow_provider_raybatch.kubernetes.kuberay.rayjob import (
    FOR_EVER,
    run_labels,
)
from airflow_provider_raybatch.kubernetes.kuberay.readiness import READY
from airflow_provider_raybatch.kubernetes.kuberay.submission import submit_on_own_cluster
from airflow_provider_raybatch.kubernetes.kuberay.waiting import ClusterNotReadyError
from airflow_provider_raybatch.places.place import (
    STOP_TIMEOUT,
    Cluster,
    LatestJob,
    NotReadyYet,
    Place,
    RunRef,
    SubmitRequest,
)

if TYPE_CHECKING:
    from airflow_provider_raybatch.cluster.follow.loop import Log
    from airflow_provider_raybatch.kubernetes.api.client import KubernetesClient
    from airflow_provider_raybatch.kubernetes.connection import Kubernetes
    from airflow_provider_raybatch.kubernetes.kuberay.rayjob import ClusterClaim, RayJobState

_SUBMIT_MARGIN = 1800
"""Seconds between a ready head and its job: a deferred task waits for a worker, and uploads its packages."""


class PerRunClusters(Place):
    """The RayJobs of a task's runs in one namespace."""

    makes_clusters = True

    def __init__(self, kubernetes: Kubernetes) -> None:
        self.kubernetes = kubernetes
        self.name = "ray_cluster"

    def fingerprint_of(self, job: str) -> str:
        """See :meth:`Place.fingerprint_of`."""
        return json_digest([job, self.kubernetes.definition.given], default=str)

    async def submit(self, request: SubmitRequest) -> Submitted:
        """See :meth:`Place.submit`."""
        async with self.kubernetes.api() as api:
            found = await submit_on_own_cluster(
                api,
                request.run.key,
                self._plan(api, request),
                lambda claimed: self._connected(api, request, claimed),
                request.build,
                request.finished,
                followed=request.window is not None,
            )
        return found.submitted

    def _plan(self, api: KubernetesClient, request: SubmitRequest) -> ClusterPlan:
        definition, key = self.kubernetes.definition, request.run.key
        counts = worker_counts(request.sizes, definition)
        window = FOR_EVER if request.window is None else request.window
        deadlines = Deadlines(math.ceil(self._wait(request)) + _SUBMIT_MARGIN, math.ceil(window))

        def manifest_of(number: int) -> dict[str, Any]:
            request.making()
            return rayjob_manifest(definition, counts, key, number, request.fingerprint, deadlines)

        def secret_of(claim: ClusterClaim) -> dict[str, Any]:
            return secret_manifest(claim, cluster_token(request.run.secret, claim.secret), run_labels(key))

        async def finished(rayjob: RayJobState) -> bool:
            return await self._has_result(api, request, rayjob)

        async def end_job(rayjob: RayJobState) -> None:
            cluster = await self._found(api, request.run, rayjob)
            try:
                await cluster.stop_job()
            except RaybatchError as error:
                request.log.warning("The job on RayJob %s could not be stopped: %s", rayjob.name, error)

        return ClusterPlan(
            fingerprint=request.fingerprint,
            manifest_of=manifest_of,
            secret_of=secret_of,
            window=window,
            pre_running_deadline=deadlines.pre_running,
            idle=_SUBMIT_MARGIN,
            on_stale_state=request.on_stale_state,
            finished=finished,
            end_job=end_job,
        )

    def _wait(self, request: SubmitRequest) -> float:
        given = request.cluster_wait
        return seconds_of(self.kubernetes.definition.cluster_wait) if given is None else given

    async def _has_result(self, api: KubernetesClient, request: SubmitRequest, rayjob: RayJobState) -> bool:
        if request.finished is None:
            return rayjob.job_status == JobStatus.SUCCEEDED
        cluster = await self._found(api, request.run, rayjob)
        if not cluster.is_reachable:
            return False  # the next job finds a dataset that is there
        try:
            async with RayJobsClient(cluster.address) as client:
                info = await client.info(cluster.submission_id)
                return info is not None and info.status.is_terminal and await request.finished(client, info)
        except RaybatchError:
            return False

    @asynccontextmanager
    async def _connected(
        self, api: KubernetesClient, request: SubmitRequest, claimed: ClaimResult
    ) -> AsyncIterator[RayJobsClient | None]:
        rayjob = claimed.state
        batch = request.finished is not None
        succeeded = rayjob.terminal and not batch
        cluster = await self._found(
            api, request.run, rayjob, request.window, batch=batch, succeeded=succeeded
        )
        request.on_cluster(cluster)
        request.log.info("%s", claimed.sentence)
        if succeeded:
            yield None
            return
        if not rayjob.terminal:
            wait = self._wait(request)
            if request.deadline is not None:
                left = request.deadline - time.time()  # while `wait` counts from the RayJob's creation
                wait = min(wait, max(1.0, left + api.now() - rayjob.created))
            if request.leave_waiting and rayjob.deployment_status not in READY:
                raise NotReadyYet(cluster, cluster.submission_id, wait)
            try:
                await wait_until_ready(api, cluster, wait, request.log)
            except ClusterNotReadyError:
                now_is = await state(api, cluster.claim)
                has_ended = now_is is not None and now_is.deployment_status == "Complete"
                if not (has_ended and cluster.is_reachable):
                    raise  # else its job has ended well meanwhile, and the cluster still knows it
        async with RayJobsClient(cluster.address) as client:
            yield client

    async def _found(
        self,
        api: KubernetesClient,
        run: RunRef,
        rayjob: RayJobState,
        window: float | None = None,
        *,
        batch: bool = True,
        succeeded: bool = False,
    ) -> RunCluster:
        """The cluster of a RayJob, with its address once its head may answer."""
        token = cluster_token(run.secret, rayjob.secret) if run.secret and rayjob.secret else ""
        cluster = RunCluster(
            self.kubernetes,
            claim_of(api, rayjob),
            token,
            window,
            submission_id=run.key.submission_id(rayjob.number),
            batch=batch,
            has_succeeded=succeeded,
        )
        return await cluster.locate(api, rayjob)

    async def latest_job(self, run: RunRef) -> LatestJob | None:
        """See :meth:`Place.latest_job`."""
        async with self.kubernetes.api() as api:
            own = await _rayjobs_of(api, run)
            if not own or not own[-1].job_id:
                return None
            cluster = await self._found(api, run, own[-1])
            return LatestJob(cluster, cluster.submission_id, own[-1].fingerprint)

    async def cluster_of(self, run: RunRef, *, batch: bool = True) -> Cluster | None:
        """See :meth:`Place.cluster_of`."""
        async with self.kubernetes.api() as api:
            own = await _rayjobs_of(api, run)
            if not own:
                return None
            last = own[-1]
            window = last.active_deadline and float(last.active_deadline)
            succeeded = not batch and last.job_status == JobStatus.SUCCEEDED
            cluster = await self._found(api, run, last, window, batch=batch, succeeded=succeeded)
            return cluster if cluster.is_reachable or cluster.has_succeeded else None

    async def stop_run(self, run: RunRef, log: Log, timeout: float = STOP_TIMEOUT) -> list[str]:  # noqa: ASYNC109 - handed on
        """See :meth:`Place.stop_run`."""
        async with self.kubernetes.api() as api:
            own = await _rayjobs_of(api, run)
            for rayjob in own:
                await self._end(api, run, rayjob, log, timeout)
        return [rayjob.name for rayjob in own]

    async def release_run(self, run: RunRef, log: Log, uid: str | None = None, *, ended: bool = True) -> None:
        """See :meth:`Place.release_run`."""
        async with self.kubernetes.api() as api:
            for rayjob in await _rayjobs_of(api, run):
                if uid is not None and rayjob.uid != uid:
                    continue
                if ended:
                    await (await self._found(api, run, rayjob)).release(log)
                else:
                    await self._end(api, run, rayjob, log, STOP_TIMEOUT)

    async def _end(
        self, api: KubernetesClient, run: RunRef, rayjob: RayJobState, log: Log, seconds: float
    ) -> None:
        cluster = await self._found(api, run, rayjob)
        if rayjob.may_run_job and cluster.is_reachable:
            await cluster.stop(cluster.submission_id, log, timeout=seconds)
        else:
            await cluster.release(log)

    async def stop_earlier(
        self, earlier: Sequence[RunRef] | None, run: RunRef, keep: str, log: Log
    ) -> list[str]:
        """See :meth:`Place.stop_earlier`."""
        if earlier is not None:
            return [name for one in earlier for name in await self.stop_run(one, log)]
        async with self.kubernetes.api() as api:
            own = await _rayjobs_of(api, run)
            return await release_older(api, run.key, own[-1]) if own else []

    async def mark_cleared(self, run: RunRef) -> None:
        """No mark outlives the cluster: where a clear counts as a retry, the next attempt resumes the run."""

    async def was_cleared(self, run: RunRef) -> bool:
        """See :meth:`mark_cleared`."""
        return False


async def _rayjobs_of(api: KubernetesClient, run: RunRef) -> list[RayJobState]:
    """The RayJobs of a run that are not being deleted, the latest last."""
    found = await clusters_of_run(api, run.key)
    own = [one for one in found if one.run_token == run.key.run_token and not one.deleting]
    return sorted(own, key=lambda one: one.number)
