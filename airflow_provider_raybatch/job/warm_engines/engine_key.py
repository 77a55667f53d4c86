# SPDX-License-Identifier: Apache-2.0
"""Which warm engine a job can use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import ray
from pydantic import SecretStr

from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.contract.text import json_digest
from airflow_provider_raybatch.job.planning.plan import Plan

_OF_THE_JOB = ("working_dir", "_ray_commit")
"""Fields of a runtime environment that differ from job to job: its spec, and what Ray adds."""
_LONGEST_MODEL = 60


@dataclass(frozen=True)
class EngineKey:
    """The engine that a job wants.

    :param digest: of all that decides an engine and its owner, but the model's files: these are compared when
        the engine is opened.
    :param title: what it is, for people.
    :param seconds: for which it waits for its next holder at the end of the job.
    """

    digest: str
    title: str
    model: str
    gpus: float
    accelerator_type: str | None
    seconds: float


def key_of(
    spec: BatchInferenceSpec, environment: Mapping[str, SecretStr], plan: Plan, seconds: float
) -> EngineKey:
    """The key of the engines that the replicas of a job want.

    :param environment: variables of the engine's processes. Engines with other credentials are others'.
    :param seconds: see :class:`EngineKey`.
    """
    task = spec.submission.task if spec.submission is not None else None
    runtime_env = ray.get_runtime_context().runtime_env
    deciding = [
        task.namespace if task is not None else "",
        [spec.engine, spec.model, spec.engine_args, spec.model_task],
        [plan.gpus, plan.accelerator_type],
        {name: value for name, value in dict(runtime_env).items() if name not in _OF_THE_JOB},
        {name: value.get_secret_value() for name, value in environment.items()},
        # An engine gets the adapters of each job, so their number decides, for which it has room.
        len(spec.adapter_locations),
    ]
    model = (spec.model or spec.engine).rstrip("/").rsplit("/", 1)[-1][-_LONGEST_MODEL:]
    return EngineKey(
        digest=json_digest(deciding, default=str),
        title=f"{model}, made by {task.dag_id}.{task.task_id}" if task is not None else model,
        model=model,
        gpus=plan.gpus,
        accelerator_type=plan.accelerator_type,
        seconds=seconds,
    )
