# SPDX-License-Identifier: Apache-2.0
"""Batch inferences for tests, and their possible ends."""

from __future__ import annotations

from typing import Any

import pytest
from airflow.sdk.exceptions import TaskDeferred

from airflow_provider_raybatch.contract.events import Failed
from airflow_provider_raybatch.contract.failures import FailureClass
from airflow_provider_raybatch.operators.ray_batch import RayBatchInferenceOperator
from tests.support.airflow_tasks import Run
from tests.support.fake_ray import FakeRay, Script
from tests.support.grouping import grouped


def batch(**arguments: Any) -> RayBatchInferenceOperator:
    """A batch inference whose arguments may have the names of the spec's fields."""
    defaults: dict[str, Any] = {
        "task_id": "t", "source": "/in", "prompt": "Say {row.x}", "model": "m",
        "destination": "s3://lake/out/", "poll_interval": 0.05,
    }  # fmt: skip
    return RayBatchInferenceOperator(**{**defaults, **grouped(arguments)})


def left(operator: Any, **arguments: Any) -> Any:
    """`operator` with what templates have left: values that can't be judged while the DAG is parsed."""
    for name, value in grouped(arguments).items():
        setattr(operator, name, value)
    return operator


def defer(run: Run, **arguments: Any) -> TaskDeferred:
    """Run an attempt up to its deferral."""
    with pytest.raises(TaskDeferred) as deferred:
        batch(deferrable=True, **arguments).execute(run.context())
    return deferred.value


def failing(failure_class: FailureClass, message: str = "It went wrong.", **script: Any) -> Any:
    event = Failed(failure_class=failure_class, message=message)
    return lambda ray, body: Script(last=[ray.line(body, event)], status="FAILED", **script)


def job_ids(ray: FakeRay) -> list[str]:
    return list(ray.jobs)


class Died(BaseException):
    """Stands for the end of a worker process."""


def die(*args: Any, **kwargs: Any) -> Any:
    raise Died


def die_before(step: str, run: Run, **arguments: Any) -> None:
    """Run an attempt up to a step of the operator, such as `_follow`, at which its worker dies."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(RayBatchInferenceOperator, step, die)
        with pytest.raises(Died):
            batch(**arguments).execute(run.context())


def spec_of_job(ray: FakeRay) -> dict[str, Any]:
    """Return the spec of the only job."""
    (job,) = ray.jobs.values()
    spec: dict[str, Any] = ray.spec(job.body)
    return spec
