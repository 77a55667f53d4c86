# SPDX-License-Identifier: Apache-2.0
"""A batch inference on a Ray cluster of its own on Kubernetes, and a task that reads its rows."""

from __future__ import annotations

from typing import Any

from airflow.sdk import DAG, task

from airflow_provider_raybatch.cluster.kuberay.cluster import KubeRayCluster
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


with DAG("own_cluster", schedule=None, params=PARAMS, render_template_as_native_obj=True):
    infer = RayBatchInferenceOperator(
        task_id="infer",
        ray_cluster=KubeRayCluster(
            image="{{ params.image }}",
            ray_version="{{ params.ray_version }}",
            head={"cpus": 1, "memory": "4Gi"},
            gpus_per_worker=0,
            cpu_workers=(0, 1),
            cpus_per_worker=1,
            memory_per_worker="2Gi",
            # GPUs for Ray alone, so that the scene needs no node with one.
            patch={
                "workerGroupSpecs": [{"groupName": "cpu-workers", "rayStartParams": {"num-gpus": str(GPUS)}}]
            },
        ),
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
