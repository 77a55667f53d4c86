# SPDX-License-Identifier: Apache-2.0
"""In which order batches of one model start: small ones pass large ones, and age wins in the end.

Airflow starts a DAG's queued runs in the order of their `run_after`, and none whose `run_after` lies ahead.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

LONGEST_WAIT = 6 * 3600.0
"""Seconds: a batch is passed only by batches that were created at most this much later."""
_LINES_A_SECOND = 100.0
"""A batch lets pass what is created while it would run at about this pace, the pace of one good GPU."""


def wait_of(lines: int) -> float:
    """Seconds for which batches that are smaller and younger go first; grows with the size."""
    return min(lines / _LINES_A_SECOND, LONGEST_WAIT)


def run_after(created_at: float, lines: int) -> datetime:
    """The `run_after` of a batch's DAG run, always in the past, so that Airflow may start it at once.

    :param created_at: epoch seconds.
    :param lines: of its input.
    """
    return datetime.fromtimestamp(created_at, UTC) - timedelta(seconds=LONGEST_WAIT - wait_of(lines))
