# SPDX-License-Identifier: Apache-2.0
"""What a run has cost, and will have at its end: how long replicas hold GPUs, times prices. Pure.

A replica holds its GPUs from its placement until it is gone, also while it loads its engine and while it has
nothing to do. The reports of processes that are gone are kept, so each reading counts all from the start, and
a reading that missed something is put right by the next one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING

from airflow_provider_raybatch.contract.arguments.limits import CostArguments
from airflow_provider_raybatch.contract.run_numbers import JobRecord

if TYPE_CHECKING:
    from airflow_provider_raybatch.job.monitor.replica_progress import ReplicaProgress  # which imports Ray

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

    def begin(self, records: Iterable[JobRecord], run_token: str) -> None:
        """Start an attempt: see :meth:`look_back`; it holds no GPUs yet."""
        self.held = None
        self.look_back(records, run_token)

    def look_back(self, records: Iterable[JobRecord], run_token: str) -> None:
        """Count what earlier attempts have noted, see :func:`spent_before`."""
        self.earlier = spent_before(records, run_token)

    def holds(self, held: HeldGpus) -> None:
        """Count the GPUs of replicas that start."""
        self.held = held

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


def added(one: Mapping[str, float], other: Mapping[str, float]) -> dict[str, float]:
    """The sums of two, by type."""
    return {kind: one.get(kind, 0.0) + other.get(kind, 0.0) for kind in {**one, **other}}


_SILENT = 60.0
"""Seconds without a report after which a replica is gone, as where its node died; they report each second."""
_SILENT_AT_ITS_END = 5.0
"""The same of one that has left: Ray Data ends its actor soon."""
_AT_ONCE = 15.0
"""Seconds from the launch within which the process of a replica has started that found room at once."""
_LONGEST_START = 660.0
"""The same of one whose environment Ray makes first, within ten minutes by default. One that comes later has
waited for others' GPUs: jobs that begin at once all see the same ones idle."""


@dataclass
class HeldGpus:
    """The GPUs of one driver's replicas.

    :param gpus: of one replica; below 1 its share of one GPU.
    :param launched: epoch seconds at which replicas began to be placed.
    :param type_of: accelerator type of a node's GPUs, by the node's id; ``""`` where it is not known.
    :param unseen: GPUs by type to count all the time, where an engine's replicas don't report.
    :param at_once: how many replicas found room at the launch. Ray gives them their GPUs then, though their
        processes may take long to start, as with a new runtime environment.
    :ivar seconds: GPUs times seconds so far, by accelerator type.
    :ivar now: GPUs that are held, by accelerator type.
    """

    gpus: float
    launched: float
    type_of: Callable[[str], str] = lambda node: ""
    unseen: Mapping[str, float] = field(default_factory=dict)
    at_once: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    now: dict[str, float] = field(default_factory=dict)
    _reports: Sequence[ReplicaProgress] = ()
    _looked: float = 0.0

    def look(self, reports: Sequence[ReplicaProgress], now: float) -> None:
        """Take a reading, with the latest report of each replica's process."""
        self._reports, self._looked = reports, now
        self._count(now)

    def end(self, now: float) -> None:
        """All are gone by now; those of the last reading were there until then."""
        self._count(now)
        self.now = {}

    def _count(self, until: float) -> None:
        seconds: dict[str, float] = {}
        held: dict[str, float] = {}
        if self.gpus:
            for kind, gpus in self.unseen.items():
                seconds[kind] = gpus * max(0.0, until - self.launched)
                held[kind] = held.get(kind, 0) + gpus
            since = self._since()
            for report in self._reports:
                if report.placed:
                    self._add(report, since.get(report.replica, report.placed), until, seconds, held)
        self.seconds, self.now = seconds, held

    def _add(
        self,
        report: ReplicaProgress,
        since: float,
        until: float,
        seconds: dict[str, float],
        held: dict[str, float],
    ) -> None:
        silent = self._looked - report.seen
        ends = report.held_until
        if not ends and silent > (_SILENT_AT_ITS_END if report.state == "ended" else _SILENT):
            ends = report.seen
        for kind, gpus in self._of(report).items():
            seconds[kind] = seconds.get(kind, 0.0) + gpus * max(0.0, (ends or until) - since)
            if not ends:
                held[kind] = held.get(kind, 0) + gpus

    def _since(self) -> dict[str, float]:
        """When the first processes of replicas that found room at once got their GPUs."""
        own = sorted(
            (one for one in self._reports if one.placed and not one.is_warm), key=attrgetter("placed")
        )
        firsts = {one.actor: one for one in reversed(own)}  # the first of each actor
        ordered = sorted(firsts.values(), key=attrgetter("placed"))
        return {
            one.replica: self.launched
            for number, one in enumerate(ordered)
            if 0 <= one.placed - self.launched <= (_LONGEST_START if number < self.at_once else _AT_ONCE)
        }

    def _of(self, report: ReplicaProgress) -> Mapping[str, float]:
        """GPUs of a replica by type; `nodes` has one each where they lie on several nodes.

        Those of a warm engine may lie on another node than the replica, which learns of it a moment later.
        """
        if report.nodes or report.is_warm:
            each = min(1, self.gpus)
            return {kind: each * gpus for kind, gpus in Counter(map(self.type_of, report.nodes)).items()}
        return {self.type_of(report.node): self.gpus}
