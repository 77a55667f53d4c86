# SPDX-License-Identifier: Apache-2.0
"""The kinds of tasks that a spec may name."""

from __future__ import annotations

from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.job.tasks.base import Task
from airflow_provider_raybatch.job.tasks.generate import Generate
from airflow_provider_raybatch.job.tasks.pooling import ClassifyTask, EmbedChunks, EmbedTask, ScoreTask

TASKS: dict[str, type[Task]] = {
    "generate": Generate,
    "embed": EmbedTask,
    "classify": ClassifyTask,
    "score": ScoreTask,
}
"""By the name that a spec has in its field `model_task`, as in
:data:`~airflow_provider_raybatch.contract.arguments.task.MODEL_TASKS`."""


def task_of(spec: BatchInferenceSpec) -> Task:
    """What one row of this job asks and yields."""
    if spec.chunk_tokens is not None:
        return EmbedChunks(spec)
    return TASKS[spec.model_task](spec)
