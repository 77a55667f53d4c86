# SPDX-License-Identifier: Apache-2.0
"""The ready-made retry policy in Airflow's own hands."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from airflow.sdk import DAG, task

from airflow_provider_raybatch.contract.failures import FailureClass, SpecError
from airflow_provider_raybatch.retries import ray_batch_retry_policy
from tests.support.batches import batch, failing
from tests.support.fake_ray import FakeRay, Script, committing


def failing_once(failure_class: FailureClass) -> Callable[[FakeRay, dict[str, Any]], Script]:
    fail = failing(failure_class)
    return lambda ray, body: committing(ray, body) if ray.jobs else fail(ray, body)


@pytest.mark.parametrize("deferrable", [False, True])
def test_airflow_retries_a_loss_at_once_and_resumes(
    ray: FakeRay, dag_test: Callable[[Any], Any], deferrable: bool
) -> None:
    ray.script = failing_once(FailureClass.NODE_LOST)
    policy = ray_batch_retry_policy(lost_delay=timedelta(seconds=1))
    with DAG(f"lost_{deferrable}", schedule=None) as dag:
        batch(deferrable=deferrable, retries=3, retry_delay=timedelta(hours=5), retry_policy=policy)
    run = dag_test(dag)
    assert run.state == "success"
    assert [name[-2:] for name in ray.jobs] == ["-0", "-1"]


def test_airflow_fails_a_task_of_the_users_at_once(ray: FakeRay, dag_test: Callable[[Any], Any]) -> None:
    tries = []
    with DAG("own_task", schedule=None, default_args={"retry_policy": ray_batch_retry_policy()}) as dag:

        @task(retries=3, retry_delay=timedelta(seconds=1))
        def count() -> None:
            tries.append(1)
            raise SpecError("limit: it is 0.")

        count()
    assert dag_test(dag).state == "failed"
    assert len(tries) == 1
