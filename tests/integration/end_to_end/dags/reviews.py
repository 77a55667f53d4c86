# SPDX-License-Identifier: Apache-2.0
"""Every night: reviews are labelled in a folder of the night, summed up in one of all, and screened."""

from __future__ import annotations

from datetime import UTC, datetime

from airflow.sdk import DAG, Asset

from airflow_provider_raybatch.operators.ray_batch import RayBatchInferenceOperator

NIGHT = "s3://lake/reviews/{{ ds }}.jsonl"
PLACES = {"ray_conn_id": "ray_gpus", "aws_conn_id": "lake", "source": NIGHT, "poll_interval": 1}
ECHO = {
    "engine": "echo",
    "engine_args": {
        "tensor_parallel_size": 2,
        "max_model_len": 200,
        "fail_pattern": "[unreadable]",
        "seconds_per_token": 0.03,
        "max_num_seqs": 8,
    },
}
LABEL = {
    "type": "object",
    "properties": {"sentiment": {"enum": ["positive", "negative", "mixed"]}},
    "required": ["sentiment"],
    "additionalProperties": False,
}

with DAG(
    "nightly_reviews",
    schedule=None,
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    default_args={"retries": 0},
    tags=["raybatch"],
):
    RayBatchInferenceOperator(
        task_id="label",
        destination="s3://lake/labels/{{ ds }}",
        prompt="How does the customer like the {row.product}? {row.text}",
        response_format=LABEL,
        replicas=2,
        id_column="review_id",
        max_error_fraction=0.2,
        outlets=[Asset("review_labels")],
        **PLACES,
        **ECHO,
    )
    RayBatchInferenceOperator(
        task_id="summarize",
        deferrable=True,
        destination="s3://lake/summaries",
        output_options={"on_destination_owned": "take_over"},
        replicas=1,
        prompt="Sum up for {row.product}: {row.text}",
        max_error_fraction=0.2,
        limits={"gpu_hour_price": {"L4": 0.72}},
        **PLACES,
        **ECHO,
    )
    RayBatchInferenceOperator(
        task_id="screen",
        destination="s3://lake/screened/{{ ds }}",
        replicas=1,
        prompt="Does this break the rules? {row.text}",
        max_errors=3,
        **PLACES,
        **ECHO,
    )
