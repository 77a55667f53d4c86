# SPDX-License-Identifier: Apache-2.0
"""Limits of a job: how many rows may fail, and how many tokens, GPU hours and how much money it may take.

Rows are counted before, during and after generation. Reaching another limit ends the job cleanly, without
losing a finished row.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from airflow_provider_raybatch.contract.arguments.limits import (
    ANY,
    CostArguments,
    LimitArguments,
    close_types,
    knows,
)
from airflow_provider_raybatch.contract.failures import FailureClass, PreflightError, RaybatchError
from airflow_provider_raybatch.contract.text import count_of, money_of
from airflow_provider_raybatch.job.failures.public_reasons import counted
from airflow_provider_raybatch.job.monitor.money import Money
from airflow_provider_raybatch.job.monitor.replica_progress import ReplicaProgress
from airflow_provider_raybatch.job.planning.cluster_view import type_of
from airflow_provider_raybatch.job.planning.node_groups import ACCELERATOR
from airflow_provider_raybatch.job.planning.plan import ClusterView
from airflow_provider_raybatch.job.row import RowFailure

_TELLING_ROWS = 1000
_FAILING_EVERYWHERE = 0.95


@dataclass(frozen=True)
class Tolerance:
    """How many of `rows` rows may fail by `limits`: a share, a number, or the stricter of both.

    :param given_up: rows that failed too often in earlier submissions to be tried again.
    :param all_may_fail: where no limit is given, as a failed row is an answer, too.
    """

    limits: LimitArguments
    rows: int
    given_up: int = 0
    all_may_fail: bool = False

    @property
    def allowed(self) -> int:
        """Failed rows that are still acceptable."""
        share = self._share_of_rows
        return share if self.limits.max_errors is None else min(share, self.limits.max_errors)

    def exceeded(self, failed: int) -> bool:
        """Whether this many failed rows are too many."""
        return failed > self.allowed

    def before(self, failures: Sequence[tuple[int, RowFailure]], seen: int, remedy: str = "") -> None:
        """Judge the first rows of the input.

        :param failures: each with the row's position.
        :param seen: how many rows were read.
        :param remedy: for the message, beside mending rows and allowing more failures.
        :raises RaybatchError: too many rows fail.
        """
        if not self.exceeded(len(failures)):
            return

        def what(shows_rows: bool) -> str:
            return (
                f"{len(failures):,} of the first {count_of(seen, 'row')} fail already, more than "
                f"{self._rule}: {counted(failures, shows_rows=shows_rows)}; mend them"
                f"{f', {remedy},' if remedy else ''} or raise {self._field}."
            )

        raise self._too_many(what(shows_rows=True), what(shows_rows=False))

    def during(self, reports: Sequence[ReplicaProgress]) -> None:
        """:raises RaybatchError: too many rows failed, or nearly all rows so far."""
        failed, done = sum(report.errors for report in reports), sum(report.written for report in reports)
        if self.exceeded(self.given_up + failed):
            killers = sum(report.killers for report in reports)
            if killers:
                raise RaybatchError(
                    f"{self._field}: {killers:,} of {count_of(failed, 'failed row')} killed the engine each "
                    f"time, more than {self._rule}; take them out, or raise {self._field}.",
                    FailureClass.POISON_ROW,
                )
            before = f" and {self.given_up:,} in earlier submissions" if self.given_up else ""
            raise self._too_many(f"{count_of(failed, 'row')} failed so far{before}, more than {self._rule}.")
        share = failed / done if done else 0.0
        if done >= _TELLING_ROWS and share >= _FAILING_EVERYWHERE > self._share:
            raise self._too_many(f"{failed:,} of the first {count_of(done, 'row')} failed, nearly all.")

    def after(self, answered: int) -> None:
        """:raises RaybatchError: too many of the final rows have no answer; nothing is published."""
        failed = self.rows - answered
        if self.exceeded(failed):
            raise self._too_many(f"{count_of(failed, 'row')} failed, more than {self._rule}.")

    def while_published(self, failed: int, when: str, describe: Callable[[], str]) -> None:
        """Check the count after columns were made of the responses.

        :param when: in the message.

        :param describe: describes the failed rows; called only if there are too many.
        :raises RaybatchError: too many rows failed; nothing is published.
        """
        if self.exceeded(failed):
            raise self._too_many(
                f"{count_of(failed, 'row')} failed once {when}, more than {self._rule}; {describe()}."
            )

    @property
    def _share(self) -> float:
        if self.limits.max_error_fraction is not None:
            return self.limits.max_error_fraction
        return 0.0 if self.limits.max_errors is None and not self.all_may_fail else 1.0

    @property
    def _share_of_rows(self) -> int:
        # Of doubles, 0.29 * 100 is less than 29.
        return int(Fraction(str(self._share)) * self.rows)

    @property
    def _field(self) -> str:
        return "max_error_fraction" if self.allowed == self._share_of_rows else "max_errors"

    @property
    def _rule(self) -> str:
        if self._field == "max_errors":
            return f"the {self.allowed:,} that max_errors allows"
        allowed = f"the {self.allowed:,} of {count_of(self.rows, 'row')}"
        if self.limits.max_error_fraction is None:
            return f"{allowed} that may fail where {self._field} is not set"
        return f"{allowed} that {self._field}={self._share:g} allows"

    def _too_many(self, what: str, public: str | None = None) -> RaybatchError:
        return RaybatchError(
            f"{self._field}: {what}",
            FailureClass.TOO_MANY_ERRORS,
            public=None if public is None else f"{self._field}: {public}",
        )


@dataclass
class Budget:
    """What one submission may still use.

    :param spent: tokens that earlier submissions of the task paid for.
    :param money: what the run costs.
    """

    limits: LimitArguments
    spent: int = 0
    money: Money = field(default_factory=Money)

    @property
    def gpu_hours(self) -> float:
        """Of this submission."""
        return sum(self.money.own_gpu_seconds.values()) / 3600

    def check(self, reports: Sequence[ReplicaProgress], now: float) -> None:
        """:raises RaybatchError: a limit is reached."""
        if self.money.held is not None:
            self.money.held.look(reports, now)
        tokens = self.spent + sum(report.input_tokens + report.output_tokens for report in reports)
        most = self.limits.max_tokens_total
        if most is not None and tokens >= most:
            raise RaybatchError(
                f"max_tokens_total: {count_of(tokens, 'token is', 'tokens are')} paid for, of {most:,} "
                "allowed; raise the limit and clear the task to go on.",
                FailureClass.LIMIT_REACHED,
            )
        if self.limits.max_gpu_hours is not None and self.gpu_hours >= self.limits.max_gpu_hours:
            raise RaybatchError(
                f"max_gpu_hours: {self.gpu_hours:.2f} GPU hours are used, of {self.limits.max_gpu_hours:g} "
                f"allowed; raise the limit and clear the task to go on.",
                FailureClass.LIMIT_REACHED,
            )
        check_cost(self.money)


def check_cost(money: Money) -> None:
    """Hold the run to `max_cost`.

    :raises RaybatchError: it is spent, or GPUs without a price are held.
    """
    most, currency = money.prices.max_cost, money.prices.currency
    if most is None:
        return
    if missing := money.without_price:
        raise RaybatchError(
            f"max_cost: {no_price(missing[0], money.prices)}; the limit can't be kept without it.",
            FailureClass.USER_ERROR,
        )
    if money.cost is not None and money.cost >= most:
        raise RaybatchError(
            f"max_cost: {money_of(money.cost, currency)} is spent by all attempts since the last clear, of "
            f"{money_of(most, currency)} allowed; clear the task to go on with the rows that are left, "
            "for up to as much again, or raise max_cost before.",
            FailureClass.LIMIT_REACHED,
        )


def no_price(kind: str, prices: CostArguments) -> str:
    """Says that the GPUs of a type have no price, and what may be meant by one that is there."""
    named = sorted(name for name in prices.gpu_hour_price or {} if name != ANY)
    close = [name for name in named if kind and kind in close_types(name, [kind])]
    what = f"GPUs of type {kind!r}" if kind else "GPUs whose type Ray does not know"
    hint = f" (is {close[0]!r} meant for it?)" if close else ""
    remedy = f"add {kind!r} or {ANY!r}" if kind else f"add {ANY!r}"
    return f"gpu_hour_price has no price for {what}{hint}; {remedy}"


def check_prices(prices: CostArguments, accelerator_type: str | None, cluster: ClusterView) -> Iterator[str]:
    """What users should know of the prices of a job with GPUs.

    :param accelerator_type: that the job asks for.
    :raises PreflightError: a type without a price, and `max_cost` needs it.
    """
    if not prices.gpu_hour_price:
        return
    # A group of an autoscaler may not tell its type before a node runs.
    found = _types(prices, accelerator_type, cluster)
    types = {kind for kind in found if kind or cluster.autoscaler is None}
    missing = sorted(kind for kind in types if prices.price_of(kind) is None)
    if missing and prices.max_cost is not None:
        raise PreflightError(f"max_cost: {no_price(missing[0], prices)}; the limit can't be kept without it.")
    for kind in missing:
        yield f"{no_price(kind, prices)}, or the cost of this job will not be known"
    yield from _misspelt(prices, types - set(missing))


def _types(prices: CostArguments, asked: str | None, cluster: ClusterView) -> set[str]:
    """By which the GPUs that replicas may get are billed; an empty one is not known."""
    nodes = [node for node in cluster.gpu_nodes if asked is None or ACCELERATOR + asked in node]
    if asked is not None and not nodes:
        return {asked}
    return {type_of({"Resources": node}, asked, prices.gpu_hour_price or ()) for node in nodes}


def _misspelt(prices: CostArguments, types: Collection[str]) -> Iterator[str]:
    """Names that stand for nothing, where the price of all others counts for what they may mean."""
    named = [name for name in prices.gpu_hour_price or {} if name != ANY and not knows(name)]
    for kind in sorted(set(types) - set(prices.gpu_hour_price or {})):
        for name in named:
            if kind in close_types(name, types)[:1]:
                yield (
                    f"gpu_hour_price: Ray knows no accelerator type {name!r}, and {ANY!r} is the price of "
                    f"{kind!r}; did you mean that?"
                )
