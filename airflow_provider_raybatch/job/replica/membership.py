# SPDX-License-Identifier: Apache-2.0
"""The processes of a run's replicas, and the actors that Ray starts them in."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass

from airflow_provider_raybatch.job.monitor.replica_progress import ReplicaProgress
from airflow_provider_raybatch.job.scheduling.messages import SILENT, StaleReplicaError

_LONGEST_PAUSE = 2.0
"""Seconds of silence that one check counts at most: where all stood still, the driver did too."""


@dataclass
class _Actor:
    """Deaths of its processes and single rows to blame for them, in a row without a finished row."""

    deaths: int = 0
    blamed_rows: int = 0


@dataclass
class _Process:
    """A living process of an actor; `silence` are the seconds since its last report."""

    actor: str
    name: str = ""
    is_needed: bool = True
    silence: float = 0.0


class Membership:
    """Which processes live, and how often those of an actor have failed.

    :ivar starting: living processes whose engine is not ready, and that have what it needs of the cluster.
    :ivar gone: processes that are known to have ended.
    :ivar started_names: names of the actors that have ever started.
    :ivar left_names: names of those that no rows were left for.
    """

    def __init__(self) -> None:
        self._living: dict[str, _Process] = {}
        self._actors: dict[str, _Actor] = {}
        self._reports: dict[str, ReplicaProgress] = {}
        self._looked = time.monotonic()
        self.starting: set[str] = set()
        self.gone: set[str] = set()
        self.started_names: set[str] = set()
        self.left_names: set[str] = set()

    def __contains__(self, process: str) -> bool:
        return process in self._living

    def require(self, process: str) -> None:
        """:raises StaleReplicaError: it was taken for lost."""
        if process not in self._living:
            raise StaleReplicaError(f"replica {process!r} was taken for lost; its rows are others' now.")

    def start(self, actor: str, process: str) -> None:
        """An actor's process has started."""
        self._actors.setdefault(actor, _Actor())
        self._living[process] = _Process(actor)

    def of_actor(self, actor: str) -> list[str]:
        """The living processes of an actor."""
        return [process for process, one in self._living.items() if one.actor == actor]

    def consecutive_failures(self, actor: str) -> int:
        """Deaths in a row without a finished row, or single rows in a row that killed an actor's engine."""
        history = self._actors[actor]
        # A death counts until it is known which row is to blame for it.
        return max(history.deaths - history.blamed_rows - 1, history.blamed_rows)

    def is_suspect(self, process: str) -> bool:
        """Whether an engine must first show that it works at all: earlier ones died and finished nothing."""
        history = self._actors[self._living[process].actor]
        return history.deaths >= 2 or history.blamed_rows > 0

    def works(self, process: str) -> None:
        """A process's engine has answered a row."""
        self._actors[self._living[process].actor] = _Actor()

    def was_to_blame(self, actor: str) -> None:
        """One more single row has killed an actor's engine."""
        self._actors[actor].blamed_rows += 1

    def end(self, process: str) -> str:
        """A process is gone. Returns the id of its actor."""
        actor = self._living.pop(process).actor
        self.starting.discard(process)
        self.gone.add(process)
        self._actors[actor].deaths += 1
        return actor

    def needed_beside(self, process: str) -> int:
        """How many other processes open their engine, or have."""
        return sum(one.is_needed for name, one in self._living.items() if name != process)

    def named(self, process: str, name: str) -> None:
        """Keep Ray's name of a process's actor."""
        self.started_names.add(name)
        if process in self._living:
            self._living[process].name = name

    def leaves(self, process: str) -> None:
        """No rows are left for a process."""
        self.starting.discard(process)
        if process in self._living:
            self._living[process].is_needed = False
            self.left_names.add(self._living[process].name)

    def hear(self, report: ReplicaProgress) -> None:
        """A process reports its progress."""
        self._reports[report.replica] = report.heard(self._reports.get(report.replica), time.time())
        if report.replica in self._living:
            self._living[report.replica].silence = 0.0

    def report_of(self, process: str) -> ReplicaProgress:
        """A process's latest report."""
        return self._reports.get(process, ReplicaProgress(process, ""))

    def snapshot(self) -> list[ReplicaProgress]:
        """The latest reports, also of processes that are gone, since their rows were done."""
        return [
            report.gone() if process in self.gone else report for process, report in self._reports.items()
        ]

    def silent(self, processes: Iterable[str]) -> list[str]:
        """Those of these processes that live, and have not reported for too long."""
        now = time.monotonic()
        passed, self._looked = min(now - self._looked, _LONGEST_PAUSE), now
        living = [process for process in processes if process in self._living]
        for process in living:
            self._living[process].silence += passed
        return [process for process in living if self._living[process].silence > SILENT]
