# SPDX-License-Identifier: Apache-2.0
"""Makes the cluster that tasks share, once for a task however often it runs, and ends it."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_provider_raybatch.cluster.jobs_api.errors import ClusterError
from airflow_provider_raybatch.cluster.kuberay.claim import Claimed, ClusterPlan, claim_cluster
from airflow_provider_raybatch.cluster.kuberay.lifecycle import (
    RELEASE_TIMEOUT,
    claim_of,
    clusters_of_run,
    delete,
    gone,
    release,
)
from airflow_provider_raybatch.cluster.kuberay.manifest import secret_manifest
from airflow_provider_raybatch.cluster.kuberay.rayjob import ClusterClaim, run_labels
from airflow_provider_raybatch.cluster.kuberay.reach import read_token
from airflow_provider_raybatch.cluster.kuberay.readiness import READY
from airflow_provider_raybatch.cluster.kuberay.role import SHARED_CLUSTERS
from airflow_provider_raybatch.cluster.kuberay.shared import (
    SharedRayCluster,
    begin_lease,
    first_deadline,
    shared_manifest,
    window_of,
)
from airflow_provider_raybatch.contract.base import seconds_of
from airflow_provider_raybatch.contract.failures import FailureClass
from airflow_provider_raybatch.contract.submission import OnStaleState
from airflow_provider_raybatch.contract.text import json_digest
from airflow_provider_raybatch.places.own_cluster import OwnCluster, wait_until_ready
from airflow_provider_raybatch.places.place import NotReadyYet

if TYPE_CHECKING:
    from airflow_provider_raybatch.cluster.follow.loop import Log
    from airflow_provider_raybatch.cluster.kuberay.client import KubernetesClient
    from airflow_provider_raybatch.cluster.submit.resolve import SubmissionKey
    from airflow_provider_raybatch.places.kubernetes import Kubernetes

_MOST_CLUSTERS = 3
_ANOTHER_ONE = frozenset({FailureClass.CLUSTER_LOST, FailureClass.CANCELLED})


@dataclass(frozen=True)
class SharedOrder:
    """A shared cluster that is to be made, or found.

    :param key: of the task that makes it.
    :param lease: seconds that it lives at least without a task that uses it.
    :param making: called right before it is made; raises where it may not be made any more.
    :param on_cluster: called as soon as it is known; raises as `making`.
    :param leave_waiting: whether the wait for it is another process's: raise :class:`NotReadyYet`.
    """

    key: SubmissionKey
    lease: float
    on_stale_state: OnStaleState
    log: Log
    making: Callable[[], None]
    on_cluster: Callable[[OwnCluster], None]
    leave_waiting: bool = False


async def make_shared_cluster(kubernetes: Kubernetes, order: SharedOrder) -> SharedRayCluster:
    """Return the one cluster of a task, once it takes jobs: the existing one, or a new one.

    An existing one that turns out to be lost is replaced.

    :raises NotReadyYet: it is being made, and `leave_waiting` is set.
    :raises ClusterError: as :func:`claim_cluster` and :func:`wait_until_ready`; or its token may not be read.
    """
    for number in range(1, _MOST_CLUSTERS + 1):
        async with kubernetes.api() as api:
            claimed = await _claimed(api, kubernetes, order)
            try:
                return await _ready(api, kubernetes, order, claimed)
            except ClusterError as error:
                is_lost = claimed.adopted and error.failure_class in _ANOTHER_ONE
                if not is_lost or number == _MOST_CLUSTERS:
                    raise
                order.log.info("%s Making another cluster.", error)
                await delete(api, claimed.claim)  # the next claim waits until it is gone
    raise AssertionError


async def _claimed(api: KubernetesClient, kubernetes: Kubernetes, order: SharedOrder) -> Claimed:
    definition = kubernetes.definition
    wait = seconds_of(definition.cluster_wait)
    fingerprint = json_digest(["shared", definition.given], default=str)

    def manifest_of(number: int) -> dict[str, Any]:
        order.making()
        return shared_manifest(
            definition, order.key, number, fingerprint, cluster_wait=wait, lease=order.lease
        )

    def secret_of(claim: ClusterClaim) -> dict[str, Any]:
        # Only the first one is kept: tasks read the token from there.
        return secret_manifest(claim, secrets.token_hex(32), run_labels(order.key))

    plan = ClusterPlan(
        fingerprint=fingerprint,
        manifest_of=manifest_of,
        secret_of=secret_of,
        window=window_of(order.lease),
        pre_running_deadline=first_deadline(wait, order.lease),
        idle=window_of(order.lease),
        on_stale_state=order.on_stale_state,
        check=lambda: kubernetes.check_rights(api, SHARED_CLUSTERS),
    )
    claimed = await claim_cluster(api, order.key, plan)
    order.log.info("%s", claimed.sentence)
    return claimed


async def _ready(
    api: KubernetesClient, kubernetes: Kubernetes, order: SharedOrder, claimed: Claimed
) -> SharedRayCluster:
    claim = claimed.claim
    token = await read_token(api, claim.secret)  # as the tasks read it
    if not token:
        lost = f"The Secret {claim.secret} of RayJob {claim.name} has no token; was it deleted?"
        raise ClusterError(lost, FailureClass.CLUSTER_LOST)
    cluster = OwnCluster(kubernetes, claim, token, window_of(order.lease), submission_id="", batch=False)
    order.on_cluster(cluster)
    rayjob = claimed.state
    wait = seconds_of(kubernetes.definition.cluster_wait)
    if rayjob.deployment_status in READY:
        wait += max(0.0, api.now() - rayjob.created)  # it came long ago, and its head may be restarting
    elif order.leave_waiting:
        raise NotReadyYet(cluster, "", wait, kubernetes.queue_wait if rayjob.suspended else 0.0)
    await wait_until_ready(api, cluster, wait, order.log, kubernetes.queue_wait)
    await begin_lease(api, claim, order.lease)
    return SharedRayCluster.of(
        kubernetes.definition, claim, cluster.ray_cluster, order.lease, order.key.task.task_id
    )


async def end_shared_cluster(kubernetes: Kubernetes, claim: ClusterClaim) -> None:
    """Delete a shared cluster, and wait until it is gone; also if it was gone already.

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
