# SPDX-License-Identifier: Apache-2.0
"""Limits of tokens, GPU hours and money. Reaching one ends the job cleanly, without losing a finished row."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

from airflow_provider_raybatch.contract.arguments.limits import (
    ANY,
    CostArguments,
    LimitArguments,
    close_types,
    knows,
)
from airflow_provider_raybatch.contract.failures import FailureClass, PreflightError, RaybatchError
from airflow_provider_raybatch.contract.text import count_of, money_of
from airflow_provider_raybatch.job.monitor.money import Money
from airflow_provider_raybatch.job.monitor.replica_progress import ReplicaProgress
from airflow_provider_raybatch.job.planning.cluster_view import type_of
from airflow_provider_raybatch.job.planning.node_groups import ACCELERATOR
from airflow_provider_raybatch.job.planning.plan import ClusterView


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
