# SPDX-License-Identifier: Apache-2.0
"""The DAGs that answer batches, with pauses between attempts that suit a test."""

from datetime import timedelta

from airflow_provider_raybatch.batch_api.dags import serve_batches
from airflow_provider_raybatch.retries import ray_batch_retry_policy

_PAUSE = timedelta(seconds=2)

for dag in serve_batches(sweep=False):
    for task in dag.tasks:
        task.retry_delay = _PAUSE
        task.retry_exponential_backoff = 0.0
        task.retry_policy = ray_batch_retry_policy(
            lost_delay=_PAUSE, unavailable_delay=_PAUSE, longest_delay=5 * _PAUSE
        )
