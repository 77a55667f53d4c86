# SPDX-License-Identifier: Apache-2.0
"""A coordinator, its replicas and Ray's part, as steps: the search for poison rows and all around it."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from airflow_provider_raybatch.contract.failures import RaybatchError
from airflow_provider_raybatch.job.monitor import replica_progress
from airflow_provider_raybatch.job.replica import coordinator as coordinator_module
from airflow_provider_raybatch.job.replica import membership as membership_module
from airflow_provider_raybatch.job.replica import process_parts
from airflow_provider_raybatch.job.replica.process_parts import stem
from airflow_provider_raybatch.job.scheduling.messages import StaleReplicaError

from .clock import Clock
from .exploring import Choose
from .search_checks import Checked
from .search_memory import Listings
from .search_replica import Ended, Stepped, Waits, modelled
from .search_scope import Scope
from .search_state import frozen, of_replica

CLOCK = Clock()
"""The coordinator's."""
_KILLED_AT = {"start", "is_needed", "join", "pull", "give_back", "claim", "leave", "lost", "write"}
"""Calls before which a process may be killed. Others change nothing that counts."""
_MINUTE = 61.0


class World(Checked):
    """Does Ray's part, and observes the search.

    :ivar counts: deaths of processes, calls of the coordinator, and requests to engines.
    """

    def __init__(self, scope: Scope, choose: Choose) -> None:
        CLOCK.now = 0.0
        super().__init__(scope)
        self.choose = choose
        self.faults_left = scope.times if scope.faults else 0
        self.lives: Counter[str] = Counter()
        self.over: set[str] = set()
        self.lost_for_good: set[str] = set()
        self.late: list[tuple[str, tuple[Any, ...]]] = []
        self.failed = False
        self.deaths = self.calls = 0

    @property
    def listings(self) -> Listings:
        threads: Any = self.coordinator._left_parts._threads
        assert isinstance(threads, Listings)
        return threads

    @property
    def counts(self) -> tuple[int, ...]:
        return self.deaths, self.calls, self.requests

    # Steps of processes.

    def called(self, process: Stepped, name: str, act: Callable[[], Any]) -> Any:
        """A message leaves a process: here it may be killed, or frozen for a long time.

        With ``kill``, the message never arrives, or much later. A kill after its arrival is a kill before the
        next call.
        """
        if process.is_dead:
            raise Ended
        fates = [""]
        if self.faults_left and name in _KILLED_AT and not self.failed:
            if "kill" in self.scope.faults:
                # A process starts only once the first message of the one before it has arrived or is lost.
                fates += ["never"] if name in {"write", "start", "is_needed"} else ["never", "later"]
            if "freeze" in self.scope.faults and process.process in self.coordinator._queue.replicas:
                fates.append("freeze")
        fate = fates[self.choose(1, len(fates) - 1)] if len(fates) > 1 else ""
        self.faults_left -= bool(fate)
        if fate == "later":
            self.late.append(act.args)  # type: ignore[attr-defined]
        if fate in {"never", "later"}:
            process.is_dead = True
            raise Ended
        if fate == "freeze":
            self.silence(process)
            self.given_up.add(process.process)
        return act()

    def answer(self, name: str, arguments: tuple[Any, ...]) -> Any:
        """The coordinator answers a call."""
        self.calls += name not in {"share", "content", "claim"}
        return getattr(self.coordinator, name)(*arguments)

    # Events.

    def options(self) -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]:
        """Return the possible steps and outside events."""
        if self.failed:
            return [], []
        steps: list[tuple[Any, ...]] = [(self.arrive_late,)] if self.late else []
        for actor, process in self.processes.items():
            if process is not None and process.task is not None:
                steps += self._steps_of(process)
            elif process is not None and not self.coordinator._draining:
                steps.append((process.begin,))
            elif process is None and not self.coordinator._draining and self._may_start(actor):
                steps.append((self.start, actor))
        steps += [(self.listings.answer, number) for number in range(len(self.listings.awaited))]
        names = {process.process for process in self.living}
        unnoticed = {
            name for name in self.coordinator._queue.replicas if name in self.coordinator._membership
        } - names
        if unnoticed and not self.coordinator._draining:
            steps.append((self.silence,))
        elif self._may_empty_one and not self._minute_has_passed:
            steps.append((self.minute,))
        is_over = self.coordinator._queue.is_finished or not steps
        return steps, self._faults() if self.faults_left and not is_over else []

    def _may_start(self, actor: str) -> bool:
        # Replicas start in turn for the first time, because all are alike.
        is_next = self.lives[actor] or all(self.lives[one] for one in self.processes if one < actor)
        waits = any(one.actor == actor and not one.found.done() for one in self.coordinator._left_parts._lost)
        return bool(is_next) and not waits and actor not in self.over | self.lost_for_good

    def _steps_of(self, process: Stepped) -> list[tuple[Any, ...]]:
        steps: list[tuple[Any, ...]] = []
        inside, scope = process.inside, self.scope
        steps += [(process.answered, row) for row in inside if row not in scope.deadly][:1]
        steps += [(process.engine_dies, False)] * bool(scope.killers & set(inside))
        steps += [(process.engine_dies, True)] * bool(scope.hogs & set(inside))
        steps += [(process.pause,)] * process.pauses
        steps += [(process.flush_interval,)] * process.will_flush
        steps += [(process.hear,)] * process.has_news
        return steps

    def _faults(self) -> list[tuple[Any, ...]]:
        faults: list[tuple[Any, ...]] = []
        for kind in self.scope.faults:
            if kind == "kill":
                faults += [(self.kill, [process]) for process in self.living]
            elif kind in {"engine killed", "fluke"}:
                faults += [
                    (self.engine_dies, process, kind == "engine killed")
                    for process in self.living
                    if process.inside
                ]
            elif kind == "node":
                faults += [(self.lose_node,)] * bool(self.living)
            elif kind == "node for good" and len(self.processes) - len(self.lost_for_good) > 1:
                faults += [(self.lose, process) for process in self.living]
            elif kind == "drain":
                faults.append((self.drain,))
        return faults

    def do(self, step: tuple[Any, ...]) -> None:
        what, *arguments = step
        what(*arguments)
        for process in self.living:
            task = process.task
            error = task.exception() if task is not None and task.done() else None
            if isinstance(error, Ended) or process.is_dead:
                self._ended(process)
            elif error is not None:
                raise error
            elif task is not None and task.done():
                self.over.add(process._actor)
                self.processes[process._actor] = None

    def _ended(self, process: Stepped) -> None:
        process.end()
        self.processes[process._actor] = None
        self.deaths += 1

    def start(self, actor: str) -> None:
        """Ray starts an actor's process (again)."""
        self.lives[actor] += 1
        try:
            self.processes[actor] = Stepped(self, actor, self.lives[actor])
        except Waits:
            self.lives[actor] -= 1
        except Ended:
            self.deaths += 1
        except RaybatchError:
            self.failed = True

    def arrive_late(self) -> None:
        """Late messages of dead processes arrive now."""
        late, self.late = self.late, []
        for name, arguments in late:
            with contextlib.suppress(StaleReplicaError):
                self.answer(name, arguments)
        self.given_up |= {process.process for process in self.living} & self.coordinator._membership.gone

    def silence(self, *frozen_ones: Stepped) -> None:
        """Enough time passes that the coordinator takes silent replicas for lost."""
        self._pass(32.0, frozen_ones)

    def minute(self) -> None:
        """Enough time passes that suspected rows stop waiting for a replica without rows."""
        self._pass(_MINUTE, ())

    def _pass(self, seconds: float, frozen_ones: tuple[Stepped, ...]) -> None:
        ends = CLOCK.now + seconds
        while CLOCK.now < ends:
            CLOCK.now += 2.0
            for process in self.living:
                if process not in frozen_ones:
                    self.coordinator.report(process.report)
            self.read_reports()

    @property
    def _may_empty_one(self) -> bool:
        queue = self.coordinator._queue
        return bool(queue._search.groups) and queue._search._emptied is None and len(queue.replicas) > 0

    @property
    def _minute_has_passed(self) -> bool:
        return CLOCK.now - self.coordinator._queue._search._since >= _MINUTE - 1

    def kill(self, processes: list[Stepped]) -> None:
        """SIGKILL."""
        self.faults_left -= 1
        for process in processes:
            process.is_dead = True

    def engine_dies(self, process: Stepped, killed: bool) -> None:
        """The engine dies, and no row is the cause."""
        self.faults_left -= 1
        process.engine_dies(killed)

    def lose_node(self) -> None:
        """Lose the node with all processes and their files."""
        self.begun.clear()
        self.kill(self.living)

    def lose(self, process: Stepped) -> None:
        """Lose a process with its node, its only one."""
        self.lost_for_good.add(process._actor)
        self.kill([process])

    def drain(self) -> None:
        """The job is stopped."""
        self.faults_left -= 1
        self.coordinator.drain()

    def close(self) -> None:
        for process in self.living:
            process.end()

    def state(self) -> Hashable:
        queue = self.coordinator._queue
        return (
            frozen(self.coordinator),
            tuple(queue.free._returned),
            CLOCK.now > queue._search._since and self._minute_has_passed,
            tuple(None if process is None else of_replica(process) for process in self.processes.values()),
            tuple(sorted(self.lives.items())),
            frozenset(self.over | self.lost_for_good | self.given_up),
            tuple((name, frozen(arguments)) for name, arguments in self.late),
            frozenset(self.written.items()),
            tuple((actor, frozenset(one.rows.items())) for actor, one in sorted(self.begun.items())),
            frozenset(
                (process, frozenset(rows))
                for process in queue.replicas
                for part, rows in self.parts.items()
                if part.path.startswith(stem("parts", process, ""))
                and part.path not in self.coordinator._reported.get(process, ())
            ),
            self.faults_left,
            self.failed,
        )


@contextlib.contextmanager
def searching() -> Iterator[None]:
    """Replace everything outside coordinator and replicas by the model."""
    with modelled(), pytest.MonkeyPatch.context() as patch:
        for module in (coordinator_module, membership_module, replica_progress):
            patch.setattr(module, "time", CLOCK)
        ledger = SimpleNamespace(
            listed=lambda entries: entries,
            outcomes=lambda folder, part: (np.array(list(folder.outcomes[part])), None),
            keys_in=lambda folder, part: [key for row in folder.outcomes[part] if (key := folder.key(row))],
            FOUND=(),
        )
        patch.setattr(process_parts, "parts", ledger)
        patch.setattr(process_parts, "ThreadPoolExecutor", Listings)
        yield
