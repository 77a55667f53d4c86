# SPDX-License-Identifier: Apache-2.0
"""A cluster that several tasks share: what names it, and the lease that keeps it.

Its RayJob never gets a Ray job, so KubeRay leaves it in `Waiting`, where it checks
`preRunningDeadlineSeconds` alone. That deadline is the lease.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Self

from airflow_provider_raybatch.cluster.jobs_api.errors import ClusterError
from airflow_provider_raybatch.cluster.kuberay.api import KubernetesApi, Manifest
from airflow_provider_raybatch.cluster.kuberay.cluster import KubeRayCluster
from airflow_provider_raybatch.cluster.kuberay.counts import worker_counts
from airflow_provider_raybatch.cluster.kuberay.lifecycle import LEFT_AFTER_A_LOOK, bound, renew
from airflow_provider_raybatch.cluster.kuberay.manifest import rayjob_manifest
from airflow_provider_raybatch.cluster.kuberay.rayjob import (
    SHARED,
    ClusterClaim,
    RayJobState,
)
from airflow_provider_raybatch.cluster.kuberay.readiness import rayjob_end
from airflow_provider_raybatch.cluster.submit.resolve import SubmissionKey
from airflow_provider_raybatch.contract.base import in_words, shown
from airflow_provider_raybatch.contract.failures import FailureClass, SpecError

SHARED_RUN = "shared"
"""In place of a run's token: each attempt, clear or second worker of a task means the same cluster."""


class SharedRayCluster(KubeRayCluster):
    """A cluster that a task has made for other tasks, as they get it: by its name, with its lease.

    :ivar claim: its RayJob.
    :ivar lease: seconds that it lives at least without a task that uses it.
    :ivar made_by: id of the task that has made it.
    """

    claim: ClusterClaim
    lease: float
    made_by: str

    def to_json(self) -> dict[str, Any]:
        """See :meth:`KubeRayCluster.to_json`."""
        return {
            **super().to_json(),
            "lease": self.lease,
            "claim": self.claim.to_json(),
            "made_by": self.made_by,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """What :meth:`to_json` made.

        :raises SpecError: it is something else.
        """
        made = super().from_json(data)
        assert isinstance(made, cls)
        try:
            made._read(data)
        except (KeyError, TypeError, ValueError):
            raise SpecError(
                f"{shown(dict(data))} is not what a CreateRayCluster returned; give the whole of that."
            ) from None
        return made

    def _read(self, data: Mapping[str, Any]) -> None:
        self.claim = ClusterClaim.from_json(data["claim"])
        self.lease, self.made_by = float(data["lease"]), str(data["made_by"])

    @classmethod
    def of(
        cls, definition: KubeRayCluster, claim: ClusterClaim, name: str, lease: float, made_by: str
    ) -> Self:
        """The cluster that a task has made.

        :param name: of the RayCluster.
        """
        return cls.from_json({
            **definition.to_json(),
            "name": name,
            "namespace": claim.namespace,
            "claim": claim.to_json(),
            "lease": lease,
            "made_by": made_by,
        })


def is_shared(data: Mapping[str, Any]) -> bool:
    """Whether plain data is meant to be that of a :class:`SharedRayCluster`."""
    return "lease" in data


def cluster_from_json(data: Mapping[str, Any]) -> KubeRayCluster:
    """What `to_json` of either kind of cluster made."""
    return SharedRayCluster.from_json(data) if is_shared(data) else KubeRayCluster.from_json(data)


def window_of(lease: float) -> float:
    """Seconds that a look leaves at most: two thirds of them are the lease."""
    return lease / LEFT_AFTER_A_LOOK


def shared_manifest(
    cluster: KubeRayCluster,
    key: SubmissionKey,
    number: int,
    fingerprint: str,
    *,
    cluster_wait: float,
    lease: float,
) -> Manifest:
    """The RayJob that holds a shared cluster.

    :param cluster: rendered and checked.
    :param cluster_wait: seconds that the cluster may take.
    """
    deadline = first_deadline(cluster_wait, lease)
    manifest = rayjob_manifest(
        cluster,
        worker_counts(None, cluster),
        key,
        number,
        fingerprint,
        pre_running_deadline=deadline,
        active_deadline=deadline,
    )
    manifest["metadata"]["annotations"][SHARED] = str(math.ceil(lease))
    if "ttl_after_finished" not in cluster.given:
        manifest["spec"]["ttlSecondsAfterFinished"] = 0  # it has no result that could be read yet
    return manifest


def first_deadline(cluster_wait: float, lease: float) -> int:
    """Seconds after its start at which KubeRay ends a cluster that never becomes ready."""
    return math.ceil(cluster_wait + window_of(lease))


async def begin_lease(api: KubernetesApi, claim: ClusterClaim, lease: float) -> None:
    """Let the lease of a cluster that is ready count from now: what its start could have taken is over.

    :raises ClusterError: the cluster has gone.
    """
    window = window_of(lease)
    kept = await renew(api, claim, window)
    kept = None if kept is None else await bound(api, claim, window, kept)
    if kept is None or not kept.living:
        raise ClusterError(f"RayJob {claim.name} has ended just now.", FailureClass.CLUSTER_LOST)


async def keep(api: KubernetesApi, cluster: SharedRayCluster) -> str | None:
    """Renew the lease; ``None``, or a sentence where the cluster is gone for good."""
    now_is = await renew(api, cluster.claim, window_of(cluster.lease))
    if now_is is None or not now_is.living:
        return _gone(cluster, _why(now_is, cluster.lease))
    if await api.get("RayCluster", str(cluster.name)) is None:  # KubeRay makes none in `Waiting`
        return _gone(cluster, "its RayCluster was deleted")
    return None


def _why(rayjob: RayJobState | None, lease: float) -> str:
    unused = f"no task had used it for {in_words(lease)}"
    if rayjob is None or rayjob.deleting:
        return f"its RayJob was deleted, by a user or since {unused}"
    if rayjob.reason == "PreRunningDeadlineExceeded":
        return f"its lease is over, since {unused}"
    _, told = rayjob_end(rayjob)
    return told.rstrip(".")


def _gone(cluster: SharedRayCluster, why: str) -> str:
    return (
        f"ray_cluster: the shared cluster {cluster.name!r} is gone, {why}; clear the task "
        f"{cluster.made_by!r}, which makes it, and then this one."
    )
