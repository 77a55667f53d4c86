# SPDX-License-Identifier: Apache-2.0
"""A batch inference on a Ray cluster of its own on Kubernetes, and a task that reads its rows."""

from __future__ import annotations

from typing import Any

from airflow.sdk import DAG, task

from airflow_provider_raybatch.kubernetes.cluster import KubeRayCluster
from airflow_provider_raybatch.operators.ray_batch import RayBatchInferenceOperator

GPUS = 2
PARAMS: dict[str, Any] = {
    "image": "rayproject/ray:2.60.0",
    "ray_version": None,
    "aws_conn_id": None,
    "source": "",
    "destination": "",
    "engine_args": {},
}


@task
def read(dataset: dict[str, Any], params: dict[str, Any] | None = None) -> list[int]:
    """The ids of the rows, in their order."""
    from airflow_provider_raybatch.dataset import open_dataset

    assert params is not None
    rows = open_dataset(dataset, aws_conn_id=params["aws_conn_id"]).to_arrow()
    return sorted(rows["id"].to_pylist())


def pod(name: str, memory: str) -> dict[str, Any]:
    """A pod's template for a machine of two cores."""
    sizes = {"cpu": "1", "memory": memory}
    container = {
        "name": name,
        "image": "{{ params.image }}",
        "resources": {"requests": sizes, "limits": sizes},
    }
    return {"spec": {"containers": [container]}}


# GPUs for Ray alone, so that the scene needs no node with one.
CLUSTER: dict[str, Any] = {
    "rayVersion": "{{ params.ray_version }}",
    "enableInTreeAutoscaling": True,
    "headGroupSpec": {"rayStartParams": {"num-cpus": "0"}, "template": pod("ray-head", "4Gi")},
    "workerGroupSpecs": [
        {
            "groupName": "cpu-workers",
            "minReplicas": 0,
            "maxReplicas": 1,
            "rayStartParams": {"num-gpus": str(GPUS)},
            "template": pod("ray-worker", "2Gi"),
        }
    ],
}

with DAG("own_cluster", schedule=None, params=PARAMS, render_template_as_native_obj=True):
    infer = RayBatchInferenceOperator(
        task_id="infer",
        ray_cluster=KubeRayCluster(spec={"kind": "RayCluster", "spec": CLUSTER}),
        deferrable=True,
        poll_interval=1,
        aws_conn_id="{{ params.aws_conn_id }}",
        source="{{ params.source }}",
        destination="{{ params.destination }}",
        id_column="id",
        prompt="Say {row.text}",
        engine="echo",
        engine_args="{{ params.engine_args }}",
        retries=0,
    )
    read(infer.output)
