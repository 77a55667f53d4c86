# SPDX-License-Identifier: Apache-2.0
"""How long Airflow waits before it begins the next attempt of a task."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow.sdk import BaseOperator

from airflow_provider_raybatch.contract.durations import seconds_of

if TYPE_CHECKING:
    from airflow.sdk.types import RuntimeTaskInstanceProtocol

_LONGEST = 86400.0  # Airflow's MAX_RETRY_DELAY


def next_attempt(task: BaseOperator, ti: RuntimeTaskInstanceProtocol, *, is_last: bool) -> str:
    """A sentence on whether an attempt follows a failed one, and when."""
    if is_last:
        return "No attempt follows; raise retries, or clear it."
    pause = "" if task.retry_policy else f" within {longest_pause(task, ti.try_number):g} s"
    return f"Airflow begins attempt {ti.try_number + 1} of {ti.max_tries + 1}{pause}."


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
