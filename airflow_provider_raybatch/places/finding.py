# SPDX-License-Identifier: Apache-2.0
"""From the arguments of a task to the place where its jobs are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow_provider_raybatch.contract.failures import SpecError
from airflow_provider_raybatch.hooks.ray import RayHook
from airflow_provider_raybatch.places.connected import ConnectedPlace
from airflow_provider_raybatch.places.named import NamedPlace
from airflow_provider_raybatch.places.place import Cluster, Place
from airflow_provider_raybatch.places.shared import SharedPlace

if TYPE_CHECKING:
    from airflow_provider_raybatch.cluster.kuberay.cluster import KubeRayCluster


def place_of(ray_conn_id: str, ray_cluster: KubeRayCluster | None = None) -> Place:
    """Where the jobs of a task are.

    :param ray_cluster: rendered and checked; counts in place of `ray_conn_id`.
    :raises RayBatchException: the connection can't be used, or read.
    """
    if ray_cluster is None:
        return ConnectedPlace(RayHook(ray_conn_id).read())
    from airflow_provider_raybatch.places.kubernetes import kubernetes_of

    kubernetes = kubernetes_of(ray_cluster)
    if kubernetes.definition.name is not None:
        return NamedPlace(kubernetes)
    from airflow_provider_raybatch.places.own import OwnPlace

    return OwnPlace(kubernetes)


def shared_place_of(ray_conn_id: str, ray_cluster: KubeRayCluster | None = None) -> SharedPlace:
    """As :func:`place_of`, for a cluster that is there.

    :raises SpecError: `ray_cluster` would be made for a job.
    """
    place = place_of(ray_conn_id, ray_cluster)
    if isinstance(place, SharedPlace):
        return place
    raise SpecError(
        "ray_cluster: it makes a cluster for each job; name a running one with KubeRayCluster(name=...)."
    )


async def acluster_of(ray_conn_id: str, ray_cluster: Mapping[str, Any] | None, submission_id: str) -> Cluster:
    """The cluster of a deferred task's job.

    :param ray_cluster: what :meth:`Cluster.for_trigger` gave.
    :raises RayBatchException: the connection can't be used, or read.
    :raises ClusterError: Kubernetes gives no answer, or refuses.
    """
    if ray_cluster is None:
        return await ConnectedPlace(await RayHook(ray_conn_id).aread()).cluster()
    from airflow_provider_raybatch.cluster.kuberay.shared import cluster_from_json
    from airflow_provider_raybatch.places.kubernetes import akubernetes_of

    kubernetes = await akubernetes_of(cluster_from_json(ray_cluster))
    if kubernetes.definition.name is not None:
        return await NamedPlace(kubernetes).cluster()
    from airflow_provider_raybatch.places.own_cluster import own_cluster_of

    return await own_cluster_of(kubernetes, ray_cluster, submission_id)
