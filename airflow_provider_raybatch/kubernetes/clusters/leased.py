# SPDX-License-Identifier: Apache-2.0
"""Clusters that exist when a task takes them: by their name, or leased from the task that has made them."""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_provider_raybatch.cluster.jobs_api.errors import ClusterError, UserClusterError
from airflow_provider_raybatch.contract.base import seconds_of
from airflow_provider_raybatch.contract.failures import FailureClass
from airflow_provider_raybatch.contract.text import json_digest
from airflow_provider_raybatch.kubernetes.clusters.heartbeat import LeaseHeartbeat
from airflow_provider_raybatch.kubernetes.clusters.run_cluster import RunCluster, wait_until_ready
from airflow_provider_raybatch.kubernetes.kuberay.claim import ClaimResult, ClusterPlan, claim_cluster
from airflow_provider_raybatch.kubernetes.kuberay.lease import (
    LeasedRayCluster,
    begin_lease,
    keep,
    leased_manifest,
    window_of,
)
from airflow_provider_raybatch.kubernetes.kuberay.lifecycle import (
    RELEASE_TIMEOUT,
    claim_of,
    clusters_of_run,
    delete,
    gone,
    release,
)
from airflow_provider_raybatch.kubernetes.kuberay.manifest import secret_manifest
from airflow_provider_raybatch.kubernetes.kuberay.rayjob import ClusterClaim, run_labels
from airflow_provider_raybatch.kubernetes.kuberay.reach import existing_address, read_token, token_of
from airflow_provider_raybatch.kubernetes.kuberay.readiness import READY
from airflow_provider_raybatch.places.existing import ExistingCluster
from airflow_provider_raybatch.places.place import Cluster

if TYPE_CHECKING:
    from airflow_provider_raybatch.cluster.follow.loop import Log
    from airflow_provider_raybatch.cluster.submit.resolve import SubmissionKey
    from airflow_provider_raybatch.kubernetes.api.client import KubernetesClient
    from airflow_provider_raybatch.kubernetes.connection import Kubernetes

_MOST_CLUSTERS = 3
_ANOTHER_ONE = frozenset({FailureClass.CLUSTER_LOST, FailureClass.CANCELLED})


class NamedCluster(ExistingCluster):
    """The RayCluster that `name` of a definition names."""

    def __init__(self, kubernetes: Kubernetes) -> None:
        self.kubernetes = kubernetes
        self.name = f"RayCluster {kubernetes.definition.name!r}"

    async def cluster(self) -> Cluster:
        """See :meth:`ExistingCluster.cluster`."""
        of, definition = self.kubernetes, self.kubernetes.definition
        leased = definition if isinstance(definition, LeasedRayCluster) else None
        async with of.api() as api:
            if leased is not None and (why := await keep(api, leased)) is not None:
                raise UserClusterError(why)
            address = await existing_address(
                api, of.server, str(definition.name), definition.dashboard_address
            )
        token = token_of(address)
        host = None if leased is None else LeaseHeartbeat(of, leased)
        return Cluster(address, of.page(address), (token,) if token else (), definition.to_json(), host)


@dataclass(frozen=True)
class LeaseRequest:
    """A leased cluster that is to be made, or found.

    :param key: of the task that makes it.
    :param lease: seconds that it lives at least without a task that uses it.
    :param making: called right before it is made; raises where it may not be made any more.
    :param on_cluster: called as soon as it is known; raises as `making`.
    """

    key: SubmissionKey
    lease: float
    log: Log
    making: Callable[[], None]
    on_cluster: Callable[[RunCluster], None]


async def make_leased_cluster(kubernetes: Kubernetes, request: LeaseRequest) -> LeasedRayCluster:
    """Return the one cluster of a task, once it takes jobs: the existing one, or a new one.

    An existing one that turns out to be lost is replaced.

    :raises ClusterError: as :func:`claim_cluster` and :func:`wait_until_ready`; or its token may not be read.
    """
    for number in range(1, _MOST_CLUSTERS + 1):
        async with kubernetes.api() as api:
            claimed = await _claimed(api, kubernetes, request)
            try:
                return await _ready(api, kubernetes, request, claimed)
            except ClusterError as error:
                is_lost = claimed.adopted and error.failure_class in _ANOTHER_ONE
                if not is_lost or number == _MOST_CLUSTERS:
                    raise
                request.log.info("%s Making another cluster.", error)
                await delete(api, claimed.claim)  # the next claim waits until it is gone
    raise AssertionError


async def _claimed(api: KubernetesClient, kubernetes: Kubernetes, request: LeaseRequest) -> ClaimResult:
    definition, key = kubernetes.definition, request.key
    fingerprint = json_digest(["shared", definition.given], default=str)
    deadline = math.ceil(seconds_of(definition.cluster_wait) + window_of(request.lease))

    def manifest_of(number: int) -> dict[str, Any]:
        request.making()
        return leased_manifest(definition, key, number, fingerprint, deadline, request.lease)

    def secret_of(claim: ClusterClaim) -> dict[str, Any]:
        # Only the first one is kept: tasks read the token from there.
        return secret_manifest(claim, secrets.token_hex(32), run_labels(key))

    plan = ClusterPlan(
        fingerprint=fingerprint,
        manifest_of=manifest_of,
        secret_of=secret_of,
        window=window_of(request.lease),
        pre_running_deadline=deadline,
        idle=window_of(request.lease),
    )
    claimed = await claim_cluster(api, key, plan)
    request.log.info("%s", claimed.sentence)
    return claimed


async def _ready(
    api: KubernetesClient, kubernetes: Kubernetes, request: LeaseRequest, claimed: ClaimResult
) -> LeasedRayCluster:
    claim, definition, lease = claimed.claim, kubernetes.definition, request.lease
    token = await read_token(api, claim.secret)  # as the tasks read it
    if not token:
        lost = f"The Secret {claim.secret} of RayJob {claim.name} has no token; was it deleted?"
        raise ClusterError(lost, FailureClass.CLUSTER_LOST)
    cluster = RunCluster(kubernetes, claim, token, window_of(lease), submission_id="", batch=False)
    request.on_cluster(cluster)
    rayjob = claimed.state
    wait = seconds_of(definition.cluster_wait)
    if rayjob.deployment_status in READY:
        wait += max(0.0, api.now() - rayjob.created)  # it came long ago, and its head may be restarting
    await wait_until_ready(api, cluster, wait, request.log)
    await begin_lease(api, claim, lease)
    return LeasedRayCluster.from_json({
        **definition.to_json(),
        "name": cluster.ray_cluster,
        "namespace": claim.namespace,
        "claim": claim.to_json(),
        "lease": lease,
        "made_by": request.key.task.task_id,
    })


async def end_leased_cluster(kubernetes: Kubernetes, claim: ClusterClaim) -> None:
    """Delete a leased cluster, and wait until it is gone; also if it was gone already.

    :raises ClusterError: it does not go, or Kubernetes gives no answer.
    """
    async with kubernetes.api() as api:
        left = await release(api, claim)
    if left is not None:
        raise ClusterError(f"{left}, {RELEASE_TIMEOUT:.0f} s after it was deleted.", FailureClass.STALLED)


async def delete_all_of(
    kubernetes: Kubernetes, key: SubmissionKey, uid: str | None = None, *, hurried: bool = False
) -> list[str]:
    """Delete what a task has made, and wait until it is gone; return the names.

    :param uid: of the only one that is deleted; ``None`` for all.
    :param hurried: whether this process has seconds left, and so does not wait.
    """
    async with kubernetes.api(hurried=hurried) as api:
        found = await clusters_of_run(api, key)
        claims = [
            claim_of(api, one) for one in found if one.run_token == key.run_token and uid in (None, one.uid)
        ]
        for one in claims:
            await delete(api, one)
        if not hurried:
            for one in claims:
                await gone(api, one)
    return [one.name for one in claims]
