# SPDX-License-Identifier: Apache-2.0
"""Why a cluster gives no answer, and what becomes known of its pods while a job runs on it."""

from __future__ import annotations

from dataclasses import replace

from airflow_provider_raybatch.cluster.follow.failure_reason import Diagnosis
from airflow_provider_raybatch.cluster.kuberay.api import KubernetesApi
from airflow_provider_raybatch.cluster.kuberay.last_words import LastWords
from airflow_provider_raybatch.cluster.kuberay.rayjob import ClusterClaim, RayJobState, rayjob_state
from airflow_provider_raybatch.cluster.kuberay.readiness import (
    Readiness,
    WaitingState,
    judge_waiting,
    rayjob_end,
)
from airflow_provider_raybatch.cluster.kuberay.waiting import observe, read_last_words
from airflow_provider_raybatch.contract.failures import FailureClass

_OF_PODS = frozenset({"AppFailed", "JobStatusCheckTimeoutExceeded", ""})
"""Reasons of a RayJob's end that its pods explain better."""


async def why_silent(api: KubernetesApi, claim: ClusterClaim, ray_cluster: str = "") -> LastWords:
    """Ask Kubernetes about a cluster whose Jobs API gives no answer.

    :param ray_cluster: name of the RayCluster that is silent; empty if it is not known.
    :return: lines for the log, and the cause; without one the head runs, so the network may be at fault.
    :raises ClusterError: Kubernetes gives no answer either, or refuses.
    """
    manifest = await api.get("RayJob", claim.name)
    job = None if manifest is None else rayjob_state(manifest)
    if job is None or job.uid != claim.uid:
        return LastWords(cause=_gone(claim.name))
    words = await read_last_words(api, job.ray_cluster) if job.ray_cluster else LastWords()
    return replace(words, cause=cause_of_silence(job, words.cause, ray_cluster))


def cause_of_silence(job: RayJobState, of_pods: Diagnosis | None, ray_cluster: str = "") -> Diagnosis | None:
    """Why a RayJob's cluster is gone, or going; ``None`` if it should answer. Pure.

    :param of_pods: how its head's pod ended, if it did.
    :param ray_cluster: see :func:`why_silent`.
    """
    if job.terminal:
        if job.deployment_status == "Complete":
            return None  # its Ray job has ended well
        if of_pods is not None and job.reason in _OF_PODS:
            return of_pods
        return Diagnosis(*rayjob_end(job))
    if job.deleting:
        return _gone(job.name)
    if job.suspended:
        told = f"Kueue has taken the RayJob {job.name}'s quota back, which ended its cluster and job."
        return Diagnosis(FailureClass.NODE_LOST, told)
    if ray_cluster and job.ray_cluster != ray_cluster:
        # A resumed RayJob is Running at once, and KubeRay polls a job that its new head never had.
        told = (
            f"The cluster {ray_cluster} of RayJob {job.name} was replaced, as when Kueue takes quota back "
            "and gives it again; its job ended with it."
        )
        return Diagnosis(FailureClass.NODE_LOST, told)
    return of_pods


async def cluster_news(api: KubernetesApi, claim: ClusterClaim, state: WaitingState) -> Readiness:
    """Look at a cluster on which a job runs: its lines tell which workers wait, and why.

    :param state: of the last look; :class:`WaitingState` at first.
    """
    return judge_waiting(await observe(api, claim), state)


def _gone(name: str) -> Diagnosis:
    told = f"The RayJob {name} was deleted, and its cluster with it; a retry makes another one."
    return Diagnosis(FailureClass.CANCELLED, told)
