# SPDX-License-Identifier: Apache-2.0
"""The operator of the task."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from airflow_provider_raybatch.cluster.jobs_api.models import JobRequest
from airflow_provider_raybatch.operators.plan import JobPlan, TaskRun
from airflow_provider_raybatch.operators.ray_batch import RayBatchInferenceOperator


class _Operator(RayBatchInferenceOperator):
    """The real operator; only one small package travels with its job."""

    log = None  # the clock of the world

    def plan(self, run: TaskRun) -> JobPlan:
        async def build(client: Any, submission_id: str) -> JobRequest:
            await client.upload_package(f"gcs://{submission_id}.zip", b"")
            key = {"key": run.key_of_job(submission_id)}
            return JobRequest("python -m job", submission_id, key)

        return replace(super().plan(run), build=build)


OPERATORS: Mapping[bool, RayBatchInferenceOperator] = {
    deferrable: _Operator(
        task_id="t", source="/in", prompt="Say {row.x}", engine="echo", destination="s3://lake/out/",
        deferrable=deferrable, poll_interval=10,
    )
    for deferrable in (False, True)
}  # fmt: skip
