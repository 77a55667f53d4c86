# SPDX-License-Identifier: Apache-2.0
"""The kinds of tasks that a spec may name."""

from __future__ import annotations

from airflow_provider_raybatch.contract.failures import SpecError
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.job.tasks.base import Task
from airflow_provider_raybatch.job.tasks.generate import Generate

TASKS: dict[str, type[Task]] = {"generate": Generate}
"""By the name that a spec has in its field `model_task`."""


def task_of(spec: BatchInferenceSpec) -> Task:
    """What one row of this job asks and yields.

    :raises SpecError: there is no such kind of task.
    """
    kind = TASKS.get(spec.model_task)
    if kind is None:
        raise SpecError(
            f"model_task: {spec.model_task!r} is not a kind of task; use {' or '.join(map(repr, TASKS))}."
        )
    return kind(spec)
