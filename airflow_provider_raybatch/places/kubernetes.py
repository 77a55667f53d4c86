# SPDX-License-Identifier: Apache-2.0
"""A namespace of a Kubernetes, as a task's `ray_cluster` names it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_provider_raybatch.contract.base import seconds_of
from airflow_provider_raybatch.hooks.kubernetes import KubernetesServerHook

if TYPE_CHECKING:
    from airflow_provider_raybatch.cluster.jobs_api.address import ClusterAddress
    from airflow_provider_raybatch.cluster.kuberay.client import KubernetesClient
    from airflow_provider_raybatch.cluster.kuberay.cluster import KubeRayCluster
    from airflow_provider_raybatch.cluster.kuberay.server import ApiServer

_HURRIED_SECONDS = 1.5


@dataclass(frozen=True)
class Kubernetes:
    """Where the clusters of a definition are.

    :param definition: may be one that only reaches clusters.
    """

    definition: KubeRayCluster
    server: ApiServer

    def api(self, *, hurried: bool = False) -> KubernetesClient:
        """A client, to be entered with ``async with``.

        :param hurried: whether it gives up after few seconds: Airflow's supervisor leaves a killed task five.
        """
        from airflow_provider_raybatch.cluster.jobs_api.transport import RetryPolicy
        from airflow_provider_raybatch.cluster.kuberay.client import KubernetesClient

        if not hurried:
            return KubernetesClient(self.server, self.definition.namespace)
        twice = RetryPolicy(attempts=2, first_wait=0.1)
        return KubernetesClient(
            self.server, self.definition.namespace, retries=twice, request_timeout=_HURRIED_SECONDS
        )

    async def address(self, api: KubernetesClient, ray_cluster: str, token: str) -> ClusterAddress | None:
        """How the Jobs API of a cluster is reached; ``None`` if there is no such RayCluster.

        :raises ClusterError: Kubernetes gives no answer, or refuses.
        """
        from airflow_provider_raybatch.cluster.kuberay.reach import cluster_address, dashboard_of

        found = await api.get("RayCluster", ray_cluster) if ray_cluster else None
        if found is None:
            return None
        return cluster_address(self.server, dashboard_of(found), token, self.definition.dashboard_address)

    async def check_rights(self, api: KubernetesClient, *only: str) -> None:
        """See :func:`~airflow_provider_raybatch.cluster.kuberay.role.check_rights`."""
        from airflow_provider_raybatch.cluster.kuberay import reach, role

        if reach.way_to(self.server, self.definition.dashboard_address) == reach.PROXY:
            only = (*only, role.PROXY)
        if self.definition.kueue_queue:  # its Workload alone says why it is not admitted
            only = (*only, role.KUEUE)
        await role.check_rights(api, self.server.credentials, *only)

    @property
    def queue_wait(self) -> float | None:
        """Seconds that a cluster may wait in a queue; ``None`` for ever."""
        given = self.definition.queue_wait
        return None if given is None else seconds_of(given)

    def page(self, address: ClusterAddress) -> str | None:
        """The dashboard for people: at the address that a template has made; else there is none."""
        return address.url if "://" in self.definition.dashboard_address else None


def kubernetes_of(definition: KubeRayCluster) -> Kubernetes:
    """The Kubernetes of a definition.

    :raises RayBatchException: the connection can't be used or read, or there are no credentials.
    """
    return Kubernetes(definition, KubernetesServerHook(definition.kubernetes_conn_id).server())


async def akubernetes_of(definition: KubeRayCluster) -> Kubernetes:
    """As :func:`kubernetes_of`, without blocking the event loop."""
    return Kubernetes(definition, await KubernetesServerHook(definition.kubernetes_conn_id).aserver())
