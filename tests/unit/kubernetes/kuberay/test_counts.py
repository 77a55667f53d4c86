# SPDX-License-Identifier: Apache-2.0
"""How many workers a cluster has where its author gives none."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.kubernetes.cluster import KubeRayCluster
from airflow_provider_raybatch.kubernetes.kuberay.pods import WorkerCounts, gpus_of_a_worker, worker_counts

IMAGE = "registry/team/ray:2.60.0"


def spec(**more: Any) -> BatchInferenceSpec:
    fields = {"source": ["s3://b/in"], "destination": "s3://b/out", "prompt": "{row.q}", "model": "org/model"}
    return BatchInferenceSpec(**{**fields, **more})


@pytest.mark.parametrize(
    ("arguments", "of_job", "counts"),
    [
        ({}, {}, WorkerCounts(1, 0, 4)),
        ({}, {"replicas": 3}, WorkerCounts(1, 0, 3)),
        ({}, {"replicas": (1, 6)}, WorkerCounts(1, 0, 6)),
        ({"workers": (1, 2)}, {"replicas": (1, 6)}, WorkerCounts(1, 1, 2)),
        ({"workers": (5, None)}, {"replicas": 2}, WorkerCounts(1, 5, 5)),
        ({"workers": 3}, {}, WorkerCounts(1, 3, 3)),
        ({"workers": "3"}, {}, WorkerCounts(1, 3, 3)),
        ({}, {"engine_args": {"tensor_parallel_size": 8}}, WorkerCounts(8, 0, 4)),
        (
            {"gpus_per_worker": 1},
            {"engine_args": {"tensor_parallel_size": 8}, "replicas": 2},
            WorkerCounts(1, 0, 16),
        ),
        (
            {"gpus_per_worker": 8},
            {"engine_args": {"tensor_parallel_size": 2}, "replicas": 8},
            WorkerCounts(8, 0, 2),
        ),
        (
            {"gpus_per_worker": 4},
            {"engine_args": {"tensor_parallel_size": 3}, "replicas": 4},
            WorkerCounts(4, 0, 4),
        ),
        (
            {},
            {"engine_args": {"tensor_parallel_size": 8, "pipeline_parallel_size": 2}, "replicas": 1},
            WorkerCounts(8, 0, 2),
        ),
        ({}, {"num_gpus": 0.5, "replicas": 3}, WorkerCounts(1, 0, 2)),
        ({"gpus_per_worker": 2}, {"num_gpus": 0.3, "replicas": 7}, WorkerCounts(2, 0, 2)),
        ({"workers": 1}, {"num_gpus": 0.5, "replicas": 2}, WorkerCounts(1, 1, 1)),
        ({}, {"engine": "echo", "model": "echo"}, WorkerCounts(0, 0, 1)),
        ({}, {"engine": "echo", "model": "echo", "replicas": 2}, WorkerCounts(0, 0, 2)),
        ({"gpus_per_worker": 0}, {}, WorkerCounts(0, 0, 1)),
        ({"gpus_per_worker": 1}, {"engine": "echo", "model": "echo"}, WorkerCounts(0, 0, 1)),
        ({"gpus_per_worker": 0, "workers": (1, 3)}, {}, WorkerCounts(0, 1, 3)),
        ({"gpus_per_worker": "0", "workers": "(2, None)"}, {}, WorkerCounts(0, 2, 2)),
        ({"gpus_per_worker": "2"}, {"replicas": 4}, WorkerCounts(2, 0, 2)),
        ({}, None, WorkerCounts(0, 0, 4)),
        ({"accelerator_type": "L4"}, None, WorkerCounts(1, 0, 4)),
        ({"gpus_per_worker": 2, "workers": 1}, None, WorkerCounts(2, 1, 1)),
    ],
)
def test_counts_follow_arguments_and_the_job(
    arguments: dict[str, Any], of_job: dict[str, Any] | None, counts: WorkerCounts
) -> None:
    job = None if of_job is None else spec(**of_job)
    assert worker_counts(job, KubeRayCluster(image=IMAGE, **arguments)) == counts


@pytest.mark.parametrize(("of_replica", "of_worker"), [(1, 1), (8, 8), (16, 8), (12, 6), (9, 3), (11, 1)])
def test_gpus_of_a_worker_share_a_replica_evenly(of_replica: int, of_worker: int) -> None:
    assert gpus_of_a_worker(of_replica) == of_worker
