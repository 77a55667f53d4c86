# SPDX-License-Identifier: Apache-2.0
"""Wait until a cluster that was made for a job takes it, on a worker or in the triggerer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider_raybatch.cluster.jobs_api.client import RayJobsClient
from airflow_provider_raybatch.cluster.kuberay.readiness import version_mismatch
from airflow_provider_raybatch.cluster.kuberay.waiting import ClusterNotReadyError, wait_for_cluster
from airflow_provider_raybatch.contract.failures import FailureClass
from airflow_provider_raybatch.contract.text import clean

if TYPE_CHECKING:
    from airflow_provider_raybatch.cluster.follow.loop import Log
    from airflow_provider_raybatch.cluster.kuberay.client import KubernetesClient
    from airflow_provider_raybatch.cluster.kuberay.rayjob import RayJobState
    from airflow_provider_raybatch.places.own_cluster import OwnCluster


async def wait_until_ready(
    api: KubernetesClient,
    cluster: OwnCluster,
    cluster_wait: float,
    log: Log,
    queue_wait: float | None = None,
) -> None:
    """Wait until the Jobs API of a claimed cluster answers, and give the cluster its address.

    :param cluster_wait: see :func:`wait_for_cluster`, as is `queue_wait`.
    :raises ClusterNotReadyError: it can't become ready, was not in time, or runs another Ray than it says.
    """

    async def answers(rayjob: RayJobState) -> str | None:
        address = await cluster.kubernetes.address(api, rayjob.ray_cluster, cluster.token)
        if address is None:
            return f"RayJob {rayjob.name}: its cluster is there, but Kubernetes does not show it yet."
        async with RayJobsClient(address) as client:
            version = (await client.version()).ray_version
        declared = cluster.kubernetes.definition.ray_version
        wrong = version_mismatch(declared, version, cluster.kubernetes.definition.image or "")
        if wrong is not None:
            raise ClusterNotReadyError(wrong, FailureClass.USER_ERROR)
        cluster.ray_cluster, cluster.address = rayjob.ray_cluster, address
        return None

    def tell(line: str) -> None:
        log.info("%s", clean(line))

    await wait_for_cluster(
        api, cluster.claim, cluster_wait=cluster_wait, queue_wait=queue_wait, tell=tell, answers=answers
    )
