# SPDX-License-Identifier: Apache-2.0
"""A running RayCluster, found by its name: nothing is created or deleted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider_raybatch.places.place import Cluster
from airflow_provider_raybatch.places.shared import SharedPlace

if TYPE_CHECKING:
    from airflow_provider_raybatch.cluster.jobs_api.address import ClusterAddress
    from airflow_provider_raybatch.places.kubernetes import Kubernetes


class NamedPlace(SharedPlace):
    """The RayCluster that `name` of a definition names."""

    def __init__(self, kubernetes: Kubernetes) -> None:
        self.kubernetes = kubernetes
        self.name = f"RayCluster {kubernetes.definition.name!r}"

    async def cluster(self) -> Cluster:
        """See :meth:`SharedPlace.cluster`."""
        from airflow_provider_raybatch.cluster.kuberay.existing import existing_address

        of = self.kubernetes
        async with of.api() as api:
            address = await existing_address(
                api, of.server, str(of.definition.name), of.definition.dashboard_address
            )
        cluster = Cluster(address, of.page(address), _secrets(address))
        cluster.of_trigger = of.definition.to_json()
        return cluster


def _secrets(address: ClusterAddress) -> tuple[str, ...]:
    from airflow_provider_raybatch.cluster.kuberay.reach import token_of

    token = token_of(address)
    return (token,) if token else ()
