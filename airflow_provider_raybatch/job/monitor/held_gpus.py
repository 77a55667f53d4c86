# SPDX-License-Identifier: Apache-2.0
"""How long replicas hold their GPUs, by accelerator type. Pure: time is an argument.

A replica holds its GPUs from its placement until it is gone, also while it loads its engine and while it has
nothing to do. The reports of processes that are gone are kept, so each reading counts all from the start, and
a reading that missed something is put right by the next one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter

from airflow_provider_raybatch.job.monitor.replica_progress import ReplicaProgress

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
