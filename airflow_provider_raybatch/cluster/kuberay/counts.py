# SPDX-License-Identifier: Apache-2.0
"""How many workers a cluster has, from what is given and from the job that runs on it; pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

from airflow_provider_raybatch.cluster.kuberay.checks import worker_range
from airflow_provider_raybatch.cluster.kuberay.cluster import KubeRayCluster
from airflow_provider_raybatch.coercion import typed
from airflow_provider_raybatch.contract.failures import SpecError
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec

MOST_REPLICAS = 4
"""Replicas that workers are allowed for where neither `workers` nor `replicas` is given."""
MOST_GPUS_PER_WORKER = 8
"""GPUs of one node, at most, where nothing is given."""


@dataclass(frozen=True)
class WorkerCounts:
    """Sizes of a cluster's group of workers.

    :param gpus: of a worker; 0 for none.
    """

    gpus: int
    fewest: int
    most: int


def worker_counts(spec: BatchInferenceSpec | None, cluster: KubeRayCluster) -> WorkerCounts:
    """How many workers, and how large they are.

    :param spec: of the batch inference; ``None`` for any other job, whose sizes are unknown.
    :param cluster: rendered and checked.
    :raises SpecError: the given workers can never hold the fewest replicas, or lack their accelerator.
    """
    of_worker = None if cluster.gpus_per_worker is None else typed(cluster.gpus_per_worker, int, "")
    of_replica = _gpus_of_a_replica(spec, cluster, of_worker)
    gpus = gpus_of_a_worker(of_replica) if of_worker is None or not of_replica else of_worker
    fewest, most = (0, None) if cluster.workers is None else worker_range(cluster.workers)
    if most is None:
        replicas = _replicas(spec, gpus)
        most = max(fewest, _workers(replicas, of_replica, gpus, _beside(spec)) if of_replica else replicas)
    if spec is not None and cluster.spec is None and not most:
        raise SpecError("ray_cluster: workers is 0, so no replica of the job has a place; raise it.")
    counts = WorkerCounts(gpus, fewest, most)
    if spec is not None and cluster.spec is None and of_replica:
        _check_fit(spec, cluster, counts)
    return counts


def gpus_of_a_worker(of_replica: int) -> int:
    """GPUs of a worker that fits a replica: all of them, or an even share where no node has as many."""
    if not of_replica:
        return 0
    sizes = range(min(of_replica, MOST_GPUS_PER_WORKER), 0, -1)
    return next(size for size in sizes if of_replica % size == 0)


def _workers(replicas: int, of_replica: int, of_worker: int, beside: int = 1) -> int:
    """Workers for so many replicas.

    :param beside: replicas that share one GPU.
    """
    replicas = math.ceil(replicas / beside)
    if of_replica <= of_worker:  # a replica whose GPUs fit a node stays on one
        return math.ceil(replicas / (of_worker // of_replica))
    return math.ceil(replicas * of_replica / of_worker)


def _check_fit(spec: BatchInferenceSpec, cluster: KubeRayCluster, counts: WorkerCounts) -> None:
    """Refuse before anything is created what the job's preflight would refuse on a running head."""
    asked, has = spec.accelerator_type, cluster.accelerator_type
    if asked and has and asked != has:
        raise SpecError(
            f"ray_cluster: its accelerator_type is {has!r}, but the task's is {asked!r}; make them the same."
        )
    fewest = spec.replicas if isinstance(spec.replicas, int) else (spec.replicas or (1, 1))[0]
    workers, of_worker = counts.most, counts.gpus
    needed = _workers(fewest, spec.gpus_per_replica, of_worker, _beside(spec))
    if workers < needed:
        share = spec.num_gpus or spec.gpus_per_replica
        raise SpecError(
            f"ray_cluster: workers is at most {workers}, with gpus_per_worker {of_worker}, but replicas is "
            f"{fewest}, with {share:g} {'GPUs' if share > 1 else 'GPU'} each; raise the most of workers "
            f"to {needed}, or lower replicas."
        )


def _gpus_of_a_replica(
    spec: BatchInferenceSpec | None, cluster: KubeRayCluster, of_worker: int | None
) -> int:
    if of_worker == 0:
        return 0  # vLLM runs on CPUs then
    if spec is None:
        return 1 if cluster.accelerator_type or of_worker else 0
    if spec.engine == "echo" and not spec.has_parallel_sizes:
        return 0
    return spec.gpus_per_replica


def _beside(spec: BatchInferenceSpec | None) -> int:
    """Replicas that share a GPU by `num_gpus`."""
    share = spec.num_gpus if spec is not None else None
    return 1 if share is None else max(1, int(1 / share + 1e-9))


def _replicas(spec: BatchInferenceSpec | None, gpus: int) -> int:
    """The most that there may be."""
    if spec is None or (spec.replicas is None and gpus):
        return MOST_REPLICAS
    if spec.replicas is None:
        return 1  # without GPUs, one uses all CPUs of its node
    return spec.replicas if isinstance(spec.replicas, int) else spec.replicas[1]
