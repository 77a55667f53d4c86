# SPDX-License-Identifier: Apache-2.0
"""What a run has cost, and will have at its end: GPU seconds times prices. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from airflow_provider_raybatch.contract.arguments.limits import CostArguments
from airflow_provider_raybatch.contract.record import JobRecord

if TYPE_CHECKING:
    from airflow_provider_raybatch.job.monitor.held_gpus import HeldGpus  # imports Ray

_DIGITS = 9
"""Of an amount of money, behind the point."""


@dataclass
class Money:
    """Of one run of a task, over all attempts since the last clear.

    :param prices: and the limit.
    :param earlier: GPUs times seconds of earlier attempts, by accelerator type.
    :param held: of this attempt; ``None`` until replicas start.
    """

    prices: CostArguments = field(default_factory=CostArguments)
    earlier: Mapping[str, float] = field(default_factory=dict)
    held: HeldGpus | None = None

    @property
    def gpu_seconds_by_type(self) -> dict[str, float]:
        """GPUs times seconds of all attempts, to a tenth."""
        total = added(self.earlier, self.own_gpu_seconds)
        return {kind: round(seconds, 1) for kind, seconds in sorted(total.items()) if seconds > 0}

    @property
    def own_gpu_seconds(self) -> dict[str, float]:
        """Of this attempt."""
        return {} if self.held is None else self.held.seconds

    @property
    def cost(self) -> float | None:
        """So far; ``None`` where a type of GPUs has no price."""
        return cost_of(self.gpu_seconds_by_type, self.prices)

    @property
    def without_price(self) -> list[str]:
        """Types that GPU seconds were spent on, and that have no price, though others have one."""
        if not self.prices.gpu_hour_price:
            return []
        return [kind for kind in self.gpu_seconds_by_type if self.prices.price_of(kind) is None]

    @property
    def used_prices(self) -> dict[str, float]:
        """Of the types that GPU seconds were spent on, as far as they have one."""
        found = {kind: self.prices.price_of(kind) for kind in self.gpu_seconds_by_type}
        return {kind: price for kind, price in found.items() if price is not None}

    def expected(self, seconds_left: float | None) -> float | None:
        """At the end, if the GPUs that are held now are held for so long; ``None`` where it is not known."""
        cost, held = self.cost, {} if self.held is None else self.held.now
        if cost is None or seconds_left is None:
            return None
        coming = cost_of({kind: gpus * seconds_left for kind, gpus in held.items()}, self.prices)
        return None if coming is None else round(cost + coming, _DIGITS)


def cost_of(gpu_seconds_by_type: Mapping[str, float], prices: CostArguments) -> float | None:
    """What GPU seconds cost; ``None`` where a type has no price."""
    total = 0.0
    for kind, seconds in gpu_seconds_by_type.items():
        price = prices.price_of(kind)
        if price is None:
            return None
        total += seconds * price
    return round(total / 3600, _DIGITS)


def spent_before(records: Iterable[JobRecord], run_token: str) -> dict[str, float]:
    """GPU seconds by type of a run's jobs, as far as they could note them.

    Not told apart by submission ids, which begin anew after a head restart.

    :param records: of all jobs of the task.
    """
    total: dict[str, float] = {}
    for record in records:
        if record.run_token == run_token:
            total = added(total, record.gpu_seconds_by_type)
    return total


def tokens_paid(written: Iterable[tuple[str, int]], records: Iterable[JobRecord]) -> int:
    """Tokens that submissions paid for: of each what it wrote, or what it noted if that is more.

    Parts lack the answers that a killed process had not written, and notes may be half a minute old.

    :param written: input and output tokens of parts, each with its submission's id.
    """
    of_parts, noted = Counter[str](), Counter[str]()
    for submission_id, tokens in written:
        of_parts[submission_id] += tokens
    for record in records:
        noted[record.submission_id] += record.input_tokens + record.output_tokens
    return sum((of_parts | noted).values())


def added(one: Mapping[str, float], other: Mapping[str, float]) -> dict[str, float]:
    """The sums of two, by type."""
    return {kind: one.get(kind, 0.0) + other.get(kind, 0.0) for kind in {**one, **other}}
