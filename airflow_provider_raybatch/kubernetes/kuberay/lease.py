# SPDX-License-Identifier: Apache-2.0
"""A cluster that several tasks lease: what names it, and the lease that keeps it.

Its RayJob never gets a Ray job, so KubeRay leaves it in `Waiting`, where it checks
`preRunningDeadlineSeconds` alone. That deadline is the lease.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Self

from airflow_provider_raybatch.cluster.jobs_api.errors import ClusterError
from airflow_provider_raybatch.cluster.submit.resolve import SubmissionKey
from airflow_provider_raybatch.contract.base import in_words, shown
from airflow_provider_raybatch.contract.failures import FailureClass, SpecError
from airflow_provider_raybatch.kubernetes.api.client import KubernetesClient, Manifest
from airflow_provider_raybatch.kubernetes.cluster import KubeRayCluster
from airflow_provider_raybatch.kubernetes.kuberay.lifecycle import bound, renew
from airflow_provider_raybatch.kubernetes.kuberay.manifest import Deadlines, rayjob_manifest
from airflow_provider_raybatch.kubernetes.kuberay.pods import worker_counts
from airflow_provider_raybatch.kubernetes.kuberay.rayjob import LEASE, ClusterClaim, RayJobState
from airflow_provider_raybatch.kubernetes.kuberay.readiness import rayjob_end
from airflow_provider_raybatch.places.place import LEFT_AFTER_POLL

LEASED_RUN = "shared"
"""In place of a run's token: each attempt, clear or second worker of a task means the same cluster."""


class LeasedRayCluster(KubeRayCluster):
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
        own = {"lease": self.lease, "claim": self.claim.to_json(), "made_by": self.made_by}
        return {**super().to_json(), **own}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """What :meth:`to_json` made.

        :raises SpecError: it is something else.
        """
        made = super().from_json(data)
        assert isinstance(made, cls)
        try:
            made.claim = ClusterClaim.from_json(data["claim"])
            made.lease, made.made_by = float(data["lease"]), str(data["made_by"])
        except (KeyError, TypeError, ValueError):
            raise SpecError(
                f"{shown(dict(data))} is not what a CreateRayCluster returned; give the whole of that."
            ) from None
        return made


def window_of(lease: float) -> float:
    """Seconds that a poll leaves at most: two thirds of them are the lease."""
    return lease / LEFT_AFTER_POLL


def leased_manifest(
    cluster: KubeRayCluster, key: SubmissionKey, number: int, fingerprint: str, deadline: int, lease: float
) -> Manifest:
    """The RayJob that holds a leased cluster.

    :param cluster: rendered and checked.
    :param deadline: seconds after its start at which KubeRay ends a cluster that never becomes ready.
    """
    # It has no result that could be read after its end.
    deadlines = Deadlines(pre_running=deadline, active=deadline, after_end=0)
    counts = worker_counts(None, cluster)
    manifest = rayjob_manifest(cluster, counts, key, number, fingerprint, deadlines)
    manifest["metadata"]["annotations"][LEASE] = str(math.ceil(lease))
    return manifest


async def begin_lease(api: KubernetesClient, claim: ClusterClaim, lease: float) -> None:
    """Let the lease of a cluster that is ready count from now: what its start could have taken is over.

    :raises ClusterError: the cluster has gone.
    """
    window = window_of(lease)
    kept = await renew(api, claim, window)
    kept = None if kept is None else await bound(api, claim, window, kept)
    if kept is None or not kept.living:
        raise ClusterError(f"RayJob {claim.name} has ended just now.", FailureClass.CLUSTER_LOST)


async def keep(api: KubernetesClient, cluster: LeasedRayCluster) -> str | None:
    """Renew the lease; ``None``, or a sentence where the cluster is gone for good."""
    now_is = await renew(api, cluster.claim, window_of(cluster.lease))
    if now_is is None or not now_is.living:
        why = _why(now_is, cluster.lease)
    elif await api.get("RayCluster", str(cluster.name)) is None:  # KubeRay makes none in `Waiting`
        why = "its RayCluster was deleted"
    else:
        return None
    return (
        f"ray_cluster: the shared cluster {cluster.name!r} is gone, {why}; clear the task "
        f"{cluster.made_by!r}, which makes it, and then this one."
    )


def _why(rayjob: RayJobState | None, lease: float) -> str:
    unused = f"no task had used it for {in_words(lease)}"
    if rayjob is None or rayjob.deleting:
        return f"its RayJob was deleted, by a user or since {unused}"
    if rayjob.reason == "PreRunningDeadlineExceeded":
        return f"its lease is over, since {unused}"
    return rayjob_end(rayjob)[1].rstrip(".")
