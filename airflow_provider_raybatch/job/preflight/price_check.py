# SPDX-License-Identifier: Apache-2.0
"""Whether the GPUs that replicas may get have a price."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from airflow_provider_raybatch.contract.arguments.accelerators import close_types, knows
from airflow_provider_raybatch.contract.arguments.cost import ANY, CostArguments
from airflow_provider_raybatch.contract.failures import PreflightError
from airflow_provider_raybatch.job.monitor.budget import no_price
from airflow_provider_raybatch.job.planning.gpu_types import type_of
from airflow_provider_raybatch.job.planning.node_groups import ACCELERATOR
from airflow_provider_raybatch.job.planning.plan import ClusterView


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
