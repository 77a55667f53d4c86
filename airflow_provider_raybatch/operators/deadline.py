# SPDX-License-Identifier: Apache-2.0
"""When a job must have ended, and how long Airflow waits before the next attempt."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from airflow.sdk import BaseOperator

from airflow_provider_raybatch.contract.base import seconds_of, shown
from airflow_provider_raybatch.contract.failures import FailureClass, SpecError
from airflow_provider_raybatch.exceptions import RayBatchFailException


@dataclass(frozen=True)
class Deadline:
    """The two bounds of one attempt, both in epoch seconds, ``None`` where there is none.

    :param of_attempt: ends the job of this attempt; the next one has its own.
    :param of_run: ends the job of every attempt.
    :param argument: where `of_attempt` comes from, with its value.
    """

    of_attempt: float | None = None
    of_run: float | None = None
    argument: str = "timeout"

    @property
    def earlier(self) -> float | None:
        """The deadline of the job."""
        return min((at for at in (self.of_attempt, self.of_run) if at is not None), default=None)

    @property
    def remedy(self) -> str:
        """For the message of a job that was late: the argument, and what to do."""
        if self.earlier is None:
            return ""
        if self.of_run is not None and self.earlier == self.of_run:
            return (
                f"The limit was deadline={_shown(self.of_run)}: set a later one, or clear the task in time."
            )
        return f"The limit was {self.argument}: raise it, or leave it out."

    @property
    def passed_for_good(self) -> bool:
        """Whether no further attempt would have time."""
        return self.of_run is not None and time.time() >= self.of_run

    def refuse_if_passed(self) -> None:
        """Raise ``RayBatchFailException`` before a submission if no attempt has time left."""
        if self.of_run is not None and self.passed_for_good:
            raise RayBatchFailException(
                f"deadline: {_shown(self.of_run)} has passed already, so nothing was submitted; set a later "
                "one, or clear the task in time.",
                FailureClass.TIMEOUT,
            )


def attempt_deadline(
    began: float, deadline: datetime | str | None, timeout: float | None, execution_timeout: timedelta | None
) -> Deadline:
    """The bounds of an attempt: the shorter duration counts from its start.

    :param began: epoch seconds; of the attempt, also after a deferral.
    :param execution_timeout: of a task that is deferred: Airflow's own bound counts no time of a deferral.
    :raises SpecError: see :func:`parse_deadline`.
    """
    of_run, bounds = parse_deadline(deadline), {"timeout": timeout}
    if execution_timeout:
        bounds["execution_timeout"] = execution_timeout.total_seconds()
    known = {name: seconds for name, seconds in bounds.items() if seconds is not None}
    if not known:
        return Deadline(of_run=of_run)
    name = min(known, key=lambda one: known[one])
    return Deadline(began + known[name], of_run, f"{name}={known[name]:g} s")


def _shown(moment: float) -> str:
    return datetime.fromtimestamp(moment, UTC).isoformat(timespec="seconds")


def parse_deadline(value: datetime | str | None) -> float | None:
    """The argument `deadline` in epoch seconds; ``None`` if it is not given.

    :raises SpecError: it is neither a datetime nor its text in ISO 8601, or has no time zone.
    """
    if value is None:
        return None
    found = value
    if isinstance(found, str):
        try:
            found = datetime.fromisoformat(found.strip())
        except ValueError:
            found = value
    if not isinstance(found, datetime):
        raise SpecError(
            f"deadline: {shown(value)} is not a point in time; give a datetime, or ISO 8601 such as "
            "'2026-01-31T06:00:00+00:00'."
        )
    if found.tzinfo is None:
        raise SpecError(f"deadline: {shown(value)} has no time zone; add one, such as '+00:00'.")
    return found.timestamp()


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
