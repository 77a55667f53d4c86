# SPDX-License-Identifier: Apache-2.0
"""Where Kubernetes plugs in: clusters that KubeRay makes, for tasks, triggers and sensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow_provider_raybatch.cluster.jobs_api.blocking import run_blocking
from airflow_provider_raybatch.kubernetes.cluster import KubeRayCluster
from airflow_provider_raybatch.kubernetes.clusters.leased import NamedCluster
from airflow_provider_raybatch.kubernetes.clusters.per_run import PerRunClusters
from airflow_provider_raybatch.kubernetes.clusters.run_cluster import made_by, outcome_of, run_cluster_of
from airflow_provider_raybatch.kubernetes.connection import akubernetes_of, kubernetes_of
from airflow_provider_raybatch.kubernetes.kuberay.lease import LeasedRayCluster
from airflow_provider_raybatch.kubernetes.triggers import RayClusterTrigger, RayJobStatusTrigger
from airflow_provider_raybatch.places.providers import ClusterProvider

if TYPE_CHECKING:
    from airflow_provider_raybatch.cluster.follow.outcome import Outcome
    from airflow_provider_raybatch.places.place import Cluster, NotReadyYet, Place


class KubernetesProvider(ClusterProvider):
    """Clusters of KubeRay: one for each run, one that tasks lease, and running ones by name."""

    def definition(self, given: Mapping[str, Any]) -> KubeRayCluster:
        """See :meth:`ClusterProvider.definition`."""
        return LeasedRayCluster.from_json(given) if "lease" in given else KubeRayCluster.of_arguments(given)

    def place(self, definition: KubeRayCluster) -> Place:
        """See :meth:`ClusterProvider.place`."""
        kubernetes = kubernetes_of(definition)
        return PerRunClusters(kubernetes) if definition.name is None else NamedCluster(kubernetes)

    async def cluster(self, data: Mapping[str, Any], submission_id: str) -> Cluster:
        """See :meth:`ClusterProvider.cluster`."""
        kind = LeasedRayCluster if "lease" in data else KubeRayCluster
        kubernetes = await akubernetes_of(kind.from_json(data))
        if kubernetes.definition.name is not None:
            return await NamedCluster(kubernetes).cluster()
        return await run_cluster_of(kubernetes, data, submission_id)

    def outcome(self, facts: Mapping[str, Any]) -> Outcome | None:
        """See :meth:`ClusterProvider.outcome`."""
        definition, claim = made_by(facts)
        return run_blocking(outcome_of(kubernetes_of(definition), claim))

    def ready_trigger(
        self, waiting: NotReadyYet, handle: Mapping[str, Any], cancel_on_kill: bool
    ) -> RayClusterTrigger:
        """See :meth:`ClusterProvider.ready_trigger`."""
        return RayClusterTrigger(
            ray_cluster=waiting.cluster.for_trigger() or {},
            submission_id=waiting.submission_id,
            cluster_wait=waiting.cluster_wait,
            cancel_on_kill=cancel_on_kill,
            handle=handle,
        )

    def ended_trigger(self, facts: Mapping[str, Any], poll_interval: float) -> RayJobStatusTrigger:
        """See :meth:`ClusterProvider.ended_trigger`."""
        return RayJobStatusTrigger(ray_cluster=facts, poll_interval=poll_interval)
