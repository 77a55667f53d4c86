# SPDX-License-Identifier: Apache-2.0
"""How far the job is, how fast it goes, and whether it still moves. Pure: time is an argument."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from airflow_provider_raybatch.contract.events import Progress
from airflow_provider_raybatch.job.watch.board import ReplicaReport

_WINDOW = 60.0


class Tracker:
    """Keeps the last minute of readings, so that rates are of now and not of the whole run.

    :param total: rows of the input.
    :param resumed: rows that earlier submissions had done.
    """

    def __init__(self, total: int, resumed: int, now: float) -> None:
        self._total = total
        self._resumed = resumed
        self._readings: deque[tuple[float, int, int]] = deque([(now, 0, 0)])
        self._state: tuple[object, ...] = ()
        self.last_change = now

    def update(self, reports: Sequence[ReplicaReport], finished_chunks: int, now: float) -> Progress:
        """Take a reading.

        :param finished_chunks: chunks whose parts are written: progress, even while rows stand still.
        """
        rows = min(sum(report.rows for report in reports), self._total - self._resumed)
        tokens = sum(report.output_tokens for report in reports)
        state = (
            rows,
            tokens,
            finished_chunks,
            tuple(sorted((report.replica, report.state) for report in reports)),
        )
        if state != self._state:
            self._state, self.last_change = state, now
        if not rows:
            self._readings.clear()  # engines are starting: that time belongs to no rate
        self._readings.append((now, rows, tokens))
        while len(self._readings) > 2 and now - self._readings[0][0] > _WINDOW:
            self._readings.popleft()
        then, old_rows, old_tokens = self._readings[0]
        seconds = max(now - then, 1e-6)
        rate = max(0.0, (rows - old_rows) / seconds)
        left = self._total - self._resumed - rows
        return Progress(
            done=self._resumed + rows,
            total=self._total,
            errors=sum(report.errors for report in reports),
            resumed=self._resumed,
            rows_per_second=round(rate, 2),
            output_tokens_per_second=round(max(0.0, (tokens - old_tokens) / seconds), 1),
            eta_seconds=round(left / rate, 1) if rate > 0 else None,
        )
