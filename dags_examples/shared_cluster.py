# SPDX-License-Identifier: Apache-2.0
"""Generate, judge and embed on one Ray cluster on Kubernetes, which is there for the length of the run.

``questions_on_one_cluster``: a cluster (`create_cluster`) -> a question about each topic (`generate`) -> the
same model says whether it is a good one (`judge`) -> a vector of each (`embed`) -> the cluster is deleted
(`delete_cluster`), also when a task before has failed. If no task deletes it, it ends itself: `LEASE` after
its last use. The tasks wait once for nodes and images, and `judge` takes the engine of `generate`.

To make it yours, change the block "What you change". docs/kubernetes.md says what the image needs, and which
rights Airflow and the pods need. Environment variables that Airflow's processes may set, all read when the
file is parsed:

* ``RAYBATCH_EXAMPLE_SHARED``: folder for the datasets, which Airflow and the pods reach; default
  ``s3://lake/questions``.
* ``RAYBATCH_EXAMPLE_TOPICS``: files with the column `topic`; default ``s3://lake/topics/``.
* ``RAYBATCH_EXAMPLE_IMAGE``: of the cluster, with Ray and vLLM; its tag begins with Ray's version.
* ``RAYBATCH_EXAMPLE_NAMESPACE``: where the cluster is made; default ``ml``.
* ``RAYBATCH_EXAMPLE_KUBERNETES_CONN_ID``: a connection of type ``kubernetes``; default
  ``kubernetes_default``, which need not exist where the worker runs in a pod.
* ``RAYBATCH_EXAMPLE_AWS_CONN_ID`` and ``_DEFERRABLE``: as in nightly_synthetic_data.py.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.sdk import dag

from airflow_provider_raybatch.arguments import Output
from airflow_provider_raybatch.kubernetes.cluster import KubeRayCluster
from airflow_provider_raybatch.kubernetes.operators import CreateRayCluster, DeleteRayCluster
from airflow_provider_raybatch.operators.ray_batch import RayBatchInferenceOperator


def setting(name: str, default: str) -> str:
    return os.environ.get(f"RAYBATCH_EXAMPLE_{name}") or default


# What you change: source, prompts, models, cluster.
TOPICS = setting("TOPICS", "s3://lake/topics/")
MODEL = {"model": "Qwen/Qwen3-8B", "engine_args": {"max_model_len": 4096}}
EMBEDDER = "Qwen/Qwen3-Embedding-0.6B"
CLUSTER = KubeRayCluster(
    image=setting("IMAGE", "registry.example.com/ml/ray-vllm:2.60.0-1"),
    kubernetes_conn_id=setting("KUBERNETES_CONN_ID", "kubernetes_default"),
    namespace=setting("NAMESPACE", "ml"),
    pod_override={"spec": {"serviceAccountName": "ray"}},  # with the rights to read and write the bucket
    accelerator_type="L4",
    node_selector={"cloud.google.com/gke-accelerator": "nvidia-l4"},
    workers=(0, 2),  # nodes come when the first task needs them
)
LEASE = timedelta(minutes=30)  # longer than any pause between two tasks, retries included

OF_THIS_RUN = setting("SHARED", "s3://lake/questions") + "/{{ dag_run.run_after | ts_nodash }}"
DEFERRABLE = setting("DEFERRABLE", "false").lower() == "true"
ON_THE_CLUSTER: dict[str, Any] = {
    "aws_conn_id": setting("AWS_CONN_ID", "") or None,
    "deferrable": DEFERRABLE,
    "replicas": (1, 2),
}


@dag(
    schedule=None,
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    default_args={"retries": 2, "retry_delay": timedelta(minutes=1)},
    tags=["raybatch"],
)
def questions_on_one_cluster() -> None:
    cluster = CreateRayCluster(task_id="create_cluster", ray_cluster=CLUSTER, lease=LEASE)
    generate = RayBatchInferenceOperator(
        task_id="generate",
        ray_cluster=cluster.output,
        source=TOPICS,
        prompt="Write one question about {row.topic}, and nothing else.",
        sampling={"temperature": 0.9, "max_tokens": 200},
        destination=f"{OF_THIS_RUN}/generated/",
        keep_warm=timedelta(minutes=10),  # judge takes this engine
        **MODEL,
        **ON_THE_CLUSTER,
    )
    judge = RayBatchInferenceOperator(
        task_id="judge",
        ray_cluster=cluster.output,
        source=generate.output,
        prompt="Can this question be answered without more context? Answer yes or no.\n\n{row.response}",
        sampling={"temperature": 0, "structured_outputs": {"choice": ["yes", "no"]}},
        output_prefix="judge_",
        destination=f"{OF_THIS_RUN}/judged/",
        keep_warm=0,  # its GPU is free for the next model
        **MODEL,
        **ON_THE_CLUSTER,
    )
    embed = RayBatchInferenceOperator(
        task_id="embed",
        ray_cluster=cluster.output,
        source=judge.output,
        prompt_column="response",
        model=EMBEDDER,
        model_task="embed",
        output_prefix="embed_",
        output_options=Output(response_column="embedding"),
        destination=f"{OF_THIS_RUN}/embedded/",
        **ON_THE_CLUSTER,
    )
    delete = DeleteRayCluster(task_id="delete_cluster", ray_cluster=cluster.output)
    cluster >> generate >> judge >> embed >> delete.as_teardown(setups=cluster)


questions_on_one_cluster()
