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


def small(cpu: str, memory: str) -> dict[str, Any]:
    """Resources of a container on a machine of two cores."""
    sizes = {"cpu": cpu, "memory": memory}
    return {"requests": sizes, "limits": sizes}


with DAG("own_cluster", schedule=None, params=PARAMS, render_template_as_native_obj=True):
    infer = RayBatchInferenceOperator(
        task_id="infer",
        ray_cluster=KubeRayCluster(
            image="{{ params.image }}",
            ray_version="{{ params.ray_version }}",
            gpus_per_worker=0,
            workers=(0, 1),
            pod_override={"spec": {"containers": [{"resources": small("1", "2Gi")}]}},
            patch={
                "headGroupSpec": {
                    "template": {
                        "spec": {"containers": [{"name": "ray-head", "resources": small("1", "4Gi")}]}
                    }
                },
                # GPUs for Ray alone, so that the scene needs no node with one.
                "workerGroupSpecs": [{"groupName": "cpu-workers", "rayStartParams": {"num-gpus": str(GPUS)}}],
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
