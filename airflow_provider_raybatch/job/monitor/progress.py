# SPDX-License-Identifier: Apache-2.0
"""How far the job is, how fast it goes, and whether it still moves. Pure: time is an argument."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from itertools import pairwise
from types import MappingProxyType

from airflow_provider_raybatch.contract.events import Progress
from airflow_provider_raybatch.job.monitor.money import Money
from airflow_provider_raybatch.job.monitor.replica_progress import ReplicaProgress


class Tracker:
    """Adds up what the replicas report. Rows without a request of this job count as done, not as speed.

    :param total: rows of the input.
    :param resumed: rows that need no request of this job.
    :param kept: of them, rows whose answer is on disk already.
    :param money: what the run costs.
    :param answered: the steps before the last one, each with the answers that it has already.
    """

    def __init__(
        self,
        total: int,
        resumed: int,
        now: float,
        kept: int = 0,
        money: Money | None = None,
        answered: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        self._total = total
        self._resumed = resumed
        self._kept = kept
        self._money = Money() if money is None else money
        self._answered = answered
        self._rows, self._tokens = SteadyRate(), SteadyRate()
        self._state: tuple[object, ...] = ()
        self.last_change = now

    def update(self, reports: Sequence[ReplicaProgress], finished_chunks: int, now: float) -> Progress:
        """Take a reading.

        :param finished_chunks: chunks whose parts are written: progress, even while rows stand still.
        """
        # What a process that died had not written is asked again.
        finished = sum(report.written if report.state == "ended" else report.rows for report in reports)
        rows = min(finished, self._total - self._resumed)
        tokens = sum(report.output_tokens for report in reports)
        state = (
            rows,
            tokens,
            finished_chunks,
            tuple(sorted((one.replica, one.state, one.loaded, one.tokens_in_flight) for one in reports)),
        )
        if state != self._state:
            self._state, self.last_change = state, now
        if rows or any(report.first_request for report in reports):
            self._rows.add(now, finished)
            self._tokens.add(now, tokens)
        rate, tokens_rate = self._rows.rate(now), self._tokens.rate(now)
        left = self._total - self._resumed - rows
        eta = 0.0 if not left else left / rate if rate else None
        money = self._money
        if money.held is not None:
            money.held.look(reports, now)
        return Progress(
            done=self._resumed + rows,
            total=self._total,
            errors=sum(report.errors for report in reports),
            resumed=self._resumed,
            rows_per_second=None if rate is None else round(rate, 2),
            output_tokens_per_second=None if tokens_rate is None else round(tokens_rate, 1),
            eta_seconds=None if eta is None else round(eta, 1),
            kept=self._kept + sum(max(0, report.written - report.errors) for report in reports),
            cost=money.cost,
            expected_cost=money.expected(eta),
            currency=None if money.cost is None else money.prices.currency,
            answered=self._answered_by_step(reports) or None,
        )

    def _answered_by_step(self, reports: Sequence[ReplicaProgress]) -> dict[str, int]:
        """Rows that each step has answered; empty for a single question."""
        return {
            name: min(self._total, known + sum(report.answered.get(step, 0) for report in reports))
            for step, (name, known) in enumerate(self._answered.items())
        }


_WINDOW = 60.0
_LEAST_SECONDS = 10.0
_LEAST_STEPS = 4
_LEAST_COUNT = 20
_STEADY = 1.5


class SteadyRate:
    """Units per second over the last minute, or over the last 20 units if these took longer.

    Rows finish in waves, as an engine answers many at once, so the time is measured from wave to wave. The
    rate is given once 20 units in 4 steps took 10 seconds, while the younger half of that time went as fast
    as the whole, within a factor of 1.5.
    """

    def __init__(self) -> None:
        self._counts: deque[tuple[float, int]] = deque()

    def add(self, now: float, count: int) -> None:
        """Add a reading; the first one starts the measurement.

        :param count: units so far. A lower count than before means that units were lost and are redone.
        """
        if not self._counts:
            self._counts.append((now, count))
            return
        last = self._counts[-1][1]
        if count < last:
            self._counts = deque((at, known - last + count) for at, known in self._counts)
        elif count > last:
            self._counts.append((now, count))
        while (
            len(self._counts) > _LEAST_STEPS
            and self._counts[1][0] <= now - _WINDOW
            and self._counts[-1][1] - self._counts[1][1] >= _LEAST_COUNT
        ):
            self._counts.popleft()

    def rate(self, now: float) -> float | None:
        """Units per second, ``None`` while it is not known."""
        if len(self._counts) < _LEAST_STEPS:
            return None
        counts = list(self._counts)
        longest_pause = max(later[0] - earlier[0] for earlier, later in pairwise(counts))
        silence = max(0.0, now - counts[-1][0] - longest_pause)
        counts[-1] = (counts[-1][0] + silence, counts[-1][1])
        seconds, count = _between(counts[0], counts[-1])
        if seconds < _LEAST_SECONDS or count < _LEAST_COUNT:
            return None
        middle = next(one for one in reversed(counts[:-1]) if counts[-1][0] - one[0] >= seconds / 2)
        younger_seconds, younger_count = _between(middle, counts[-1])
        whole, younger = count / seconds, younger_count / younger_seconds
        return whole if whole / _STEADY <= younger <= whole * _STEADY else None


def _between(earlier: tuple[float, int], later: tuple[float, int]) -> tuple[float, int]:
    return later[0] - earlier[0], later[1] - earlier[1]
