# SPDX-License-Identifier: Apache-2.0
"""A running RayCluster by its name: it is neither made nor deleted; a shared one's lease is renewed."""

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
        from airflow_provider_raybatch.cluster.jobs_api.errors import UserClusterError
        from airflow_provider_raybatch.cluster.kuberay.existing import existing_address
        from airflow_provider_raybatch.cluster.kuberay.shared import SharedRayCluster, keep
        from airflow_provider_raybatch.places.lease_keeping import LeaseKeeper

        of = self.kubernetes
        shared = of.definition if isinstance(of.definition, SharedRayCluster) else None
        async with of.api() as api:
            if shared is not None and (gone := await keep(api, shared)) is not None:
                raise UserClusterError(gone)
            address = await existing_address(
                api, of.server, str(of.definition.name), of.definition.dashboard_address
            )
        cluster = Cluster(address, of.page(address), _secrets(address))
        cluster.of_trigger = of.definition.to_json()
        cluster.host = None if shared is None else LeaseKeeper(of, shared)
        return cluster


def _secrets(address: ClusterAddress) -> tuple[str, ...]:
    from airflow_provider_raybatch.cluster.kuberay.reach import token_of

    token = token_of(address)
    return (token,) if token else ()
