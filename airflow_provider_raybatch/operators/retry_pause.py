# SPDX-License-Identifier: Apache-2.0
"""How long Airflow waits before it begins the next attempt of a task."""

from __future__ import annotations

from airflow.sdk import BaseOperator

from airflow_provider_raybatch.contract.durations import seconds_of

_LONGEST = 86400.0  # Airflow's MAX_RETRY_DELAY


def longest_pause(task: BaseOperator, try_number: int) -> float:
    """Seconds between the end of an attempt and the next one, at most.

    With `retry_exponential_backoff`, Airflow chooses up to twice the pause that it has computed
    (`TaskInstance.next_retry_datetime`).
    """
    pause, factor = seconds_of(task.retry_delay), float(task.retry_exponential_backoff or 1)
    if factor == 1 or factor < 0:
        return pause
    try:
        pause = min(_LONGEST, 2 * max(1.0, pause * factor ** (try_number - 1)))
    except OverflowError:
        pause = _LONGEST
    return min(pause, seconds_of(task.max_retry_delay)) if task.max_retry_delay else pause
