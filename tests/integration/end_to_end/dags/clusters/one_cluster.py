# SPDX-License-Identifier: Apache-2.0
"""Batch inferences that share a Ray cluster on Kubernetes, with a task that deletes it and without one."""

from __future__ import annotations

from typing import Any

from airflow.sdk import DAG

from airflow_provider_raybatch.kubernetes.cluster import KubeRayCluster
from airflow_provider_raybatch.kubernetes.operators import CreateRayCluster, DeleteRayCluster
from airflow_provider_raybatch.operators.ray_batch import RayBatchInferenceOperator

PARAMS: dict[str, Any] = {"ray_version": "", "source": "", "destination": "", "engine_args": {}}


def creates() -> CreateRayCluster:
    """A cluster without workers: replicas run on its head."""
    container = {"name": "ray-head", "image": "rayproject/ray:2.60.0"}
    head = {
        "rayStartParams": {"num-cpus": "4", "no-monitor": "true"},
        "template": {"spec": {"containers": [container]}},
    }
    cluster = KubeRayCluster(
        spec={
            "kind": "RayCluster",
            "spec": {"rayVersion": "{{ params.ray_version }}", "headGroupSpec": head},
        }
    )
    return CreateRayCluster(task_id="create", ray_cluster=cluster, lease=600)


def batch(cluster: Any, task_id: str, **arguments: Any) -> RayBatchInferenceOperator:
    return RayBatchInferenceOperator(**{
        "task_id": task_id,
        "ray_cluster": cluster.output,
        "poll_interval": 1,
        "aws_conn_id": "lake",
        "destination": f"{{{{ params.destination }}}}/{task_id}",
        "engine": "echo",
        "engine_args": "{{ params.engine_args }}",
        "retries": 0,
        **arguments,
    })


def generates(cluster: Any) -> RayBatchInferenceOperator:
    source = "{{ params.source }}"
    return batch(cluster, "generate", source=source, prompt="Say {row.text}", keep_warm=300)


with DAG("shared_cluster", schedule=None, params=PARAMS, render_template_as_native_obj=True):
    shared = creates()
    generate = generates(shared)
    judge = batch(
        shared,
        "judge",
        source=generate.output,
        prompt="Judge {row.response}",
        output_prefix="judged_",
        keep_warm=0,
        deferrable=True,
    )
    embed = batch(
        shared,
        "embed",
        source=judge.output,
        prompt_column="judged_response",
        model_task="embed",
        output_prefix="embed_",
        output_options={"response_column": "embedding"},
    )
    delete = DeleteRayCluster(task_id="delete", ray_cluster=shared.output)
    shared >> generate >> judge >> embed >> delete.as_teardown(setups=shared)

with DAG("left_cluster", schedule=None, params=PARAMS, render_template_as_native_obj=True):
    generates(creates())
