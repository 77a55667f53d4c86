# SPDX-License-Identifier: Apache-2.0
"""The longest pause that Airflow may make before it retries a task."""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.models.taskinstance import TaskInstance

from airflow_provider_raybatch.operators.deadline import longest_pause
from tests.support.batches import batch


@pytest.mark.parametrize("try_number", [1, 4, 2000])
@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"retry_delay": 7.5},
        {"retry_delay": timedelta(seconds=20), "retry_exponential_backoff": 3},
        {"retry_delay": 0, "retry_exponential_backoff": 2},
        {"retry_exponential_backoff": True},
        {"retry_exponential_backoff": 1.5, "max_retry_delay": timedelta(minutes=8)},
    ],
)
def test_is_never_shorter_than_airflows_own(arguments: dict[str, Any], try_number: int) -> None:
    task = batch(**arguments)
    longest = longest_pause(task, try_number)
    for day in range(20):  # Airflow's own depends on a hash of these
        instance = SimpleNamespace(
            task=task, try_number=try_number, dag_id="d", task_id="t", logical_date=day,
            retry_delay_override=None, end_date=timedelta(0), log=SimpleNamespace(warning=print),
        )  # fmt: skip
        own = TaskInstance.next_retry_datetime(instance).total_seconds()
        assert own <= longest <= max(2 * own, 2)
