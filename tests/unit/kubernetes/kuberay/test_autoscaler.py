# SPDX-License-Identifier: Apache-2.0
"""Ray's own autoscaler reads the groups of a cluster as they are meant, and so does a job's plan."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_raybatch.job.planning.autoscaler import from_autoscaling_config
from airflow_provider_raybatch.job.planning.node_groups import request
from airflow_provider_raybatch.kubernetes.cluster import KubeRayCluster
from airflow_provider_raybatch.kubernetes.kuberay.manifest import ray_cluster_spec
from airflow_provider_raybatch.kubernetes.kuberay.pods import worker_counts

GIB = 2**30


def read_by_ray(cluster: KubeRayCluster) -> dict[str, Any]:
    from ray.autoscaler._private.kuberay.autoscaling_config import _derive_autoscaling_config_from_ray_cr

    spec = ray_cluster_spec(cluster, worker_counts(None, cluster))
    metadata = {"name": "c", "namespace": "ml"}
    config: dict[str, Any] = _derive_autoscaling_config_from_ray_cr({"metadata": metadata, "spec": spec})
    return config


@pytest.mark.filterwarnings("ignore")
def test_groups_scale_from_zero_by_accelerator() -> None:
    config = read_by_ray(
        KubeRayCluster(image="r:2.60.0", accelerator_type="H100", gpus_per_worker=2, workers=(0, 3))
    )
    types = config["available_node_types"]
    assert types["headgroup"]["resources"] == {"CPU": 0, "GPU": 0, "memory": 8 * GIB}
    assert types["gpu-workers"]["resources"] == {
        "CPU": 16, "GPU": 2, "memory": 128 * GIB, "accelerator_type:H100": 1,
    }  # fmt: skip
    assert types["gpu-workers"]["max_workers"] == 3
    assert config["idle_timeout_minutes"] == 1.0
    limits = from_autoscaling_config(config)
    assert limits.replicas(request(1.0, 1.0, "H100"), False, []) == 6
    assert limits.replicas(request(1.0, 1.0, "L4"), False, []) == 0
