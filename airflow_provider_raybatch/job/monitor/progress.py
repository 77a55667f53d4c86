# SPDX-License-Identifier: Apache-2.0
"""How far the job is, how fast it goes, and whether it still moves. Pure: time is an argument."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from airflow_provider_raybatch.contract.events import Progress
from airflow_provider_raybatch.job.monitor.money import Money
from airflow_provider_raybatch.job.monitor.pace import SteadyRate
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
            answered={
                name: min(self._total, known + sum(report.answered.get(step, 0) for report in reports))
                for step, (name, known) in enumerate(self._answered.items())
            }
            or None,
        )
