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

from airflow_provider_raybatch.job.monitor.replica_progress import ReplicaProgress

_SILENT = 60.0
"""Seconds without a report after which a replica is gone, as where its node died; they report each second."""
_SILENT_AT_ITS_END = 5.0
"""The same of one that has left: Ray Data ends its actor soon."""
_AT_ONCE = 15.0
"""Seconds from the launch within which the process of a replica has started that found room at once."""


@dataclass
class HeldGpus:
    """The GPUs of one driver's replicas.

    :param gpus: of one replica.
    :param launched: epoch seconds at which replicas began to be placed.
    :param type_of: accelerator type of a node's GPUs, by the node's id; ``""`` where it is not known.
    :param unseen: GPUs by type to count all the time, where an engine's replicas don't report.
    :ivar seconds: GPUs times seconds so far, by accelerator type.
    :ivar now: GPUs that are held, by accelerator type.
    """

    gpus: int
    launched: float
    type_of: Callable[[str], str] = lambda node: ""
    unseen: Mapping[str, int] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    now: dict[str, int] = field(default_factory=dict)
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
        held = Counter[str]()
        if self.gpus:
            for kind, gpus in self.unseen.items():
                seconds[kind] = gpus * max(0.0, until - self.launched)
                held[kind] += gpus
            for report in self._reports:
                if report.placed:
                    self._add(report, until, seconds, held)
        self.seconds, self.now = seconds, dict(held)

    def _add(
        self, report: ReplicaProgress, until: float, seconds: dict[str, float], held: Counter[str]
    ) -> None:
        silent = self._looked - report.seen
        ends = report.held_until
        if not ends and silent > (_SILENT_AT_ITS_END if report.state == "ended" else _SILENT):
            ends = report.seen
        found_room_at_once = self.launched <= report.placed <= self.launched + _AT_ONCE
        since = self.launched if found_room_at_once and not report.is_warm else report.placed
        for kind, gpus in self._of(report).items():
            seconds[kind] = seconds.get(kind, 0.0) + gpus * max(0.0, (ends or until) - since)
            if not ends:
                held[kind] += gpus

    def _of(self, report: ReplicaProgress) -> Mapping[str, int]:
        """GPUs of a replica by type; `nodes` has one each where they lie on several nodes."""
        if report.nodes:
            return Counter(map(self.type_of, report.nodes))
        return {self.type_of(report.node): self.gpus}
