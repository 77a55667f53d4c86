# SPDX-License-Identifier: Apache-2.0
"""How the job of a cluster of its own is by the word of Kubernetes, for those without its token."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from airflow_provider_raybatch.cluster.follow.outcome import Outcome
from airflow_provider_raybatch.cluster.kuberay.cluster import KubeRayCluster
from airflow_provider_raybatch.cluster.kuberay.lifecycle import state
from airflow_provider_raybatch.cluster.kuberay.rayjob import ClusterClaim
from airflow_provider_raybatch.cluster.kuberay.readiness import rayjob_end
from airflow_provider_raybatch.contract.failures import FailureClass, SpecError
from airflow_provider_raybatch.contract.text import clean

if TYPE_CHECKING:
    from airflow_provider_raybatch.cluster.kuberay.rayjob import RayJobState
    from airflow_provider_raybatch.places.kubernetes import Kubernetes


def made_by(facts: object) -> tuple[KubeRayCluster, ClusterClaim]:
    """What :attr:`Cluster.facts` described.

    :raises SpecError: it is something else.
    """
    try:
        assert isinstance(facts, Mapping)
        return KubeRayCluster.from_json(facts), ClusterClaim.from_json(facts["claim"])
    except (AssertionError, KeyError, TypeError):
        raise SpecError(
            "submission_id: its 'ray_cluster' is not what a RayJobOperator returned; give the whole of that."
        ) from None


async def outcome_of(kubernetes: Kubernetes, claim: ClusterClaim) -> Outcome | None:
    """How the job ended; ``None`` while it runs, or waits for its cluster.

    :raises ClusterError: Kubernetes gives no answer, or refuses.
    """
    async with kubernetes.api() as api:
        return judged(await state(api, claim), claim.name)


def judged(rayjob: RayJobState | None, name: str) -> Outcome | None:
    """As :func:`outcome_of`. Pure."""
    if rayjob is None or rayjob.deleting:
        told = f"The RayJob {name} was deleted; how its job ended is unknown."
        return Outcome("deleted", FailureClass.CANCELLED, told, ended=True)
    if rayjob.job_status == "SUCCEEDED":
        return Outcome("succeeded", None, "The job finished successfully.", ended=True)
    if rayjob.job_status == "STOPPED":
        return Outcome("stopped", FailureClass.CANCELLED, "The job was stopped.", ended=True)
    if not rayjob.terminal:
        return None
    failure_class, message = rayjob_end(rayjob)
    return Outcome("failed", failure_class, clean(message), ended=True)
