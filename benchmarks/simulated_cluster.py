# SPDX-License-Identifier: Apache-2.0
"""A simulated cluster: replicas that run a number of rows at once, and ask the real queue for them.

Event-driven. A replica runs each of its rows at its own speed in tokens a second.
"""

from __future__ import annotations

import heapq
import itertools
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from airflow_provider_raybatch.job.scheduling.messages import PullRequest
from airflow_provider_raybatch.job.scheduling.queue import PullQueue
from airflow_provider_raybatch.job.scheduling.row_index import RowIndex

CALL, OPEN = 0.01, 0.2
"""Seconds that a call takes, and that reading, rendering and tokenising of what it gave take."""
FLUSH, REPORT, AT_MOST_EVERY = 10.0, 1.0, 0.2
"""Seconds between flushes, between reports, and between calls at least."""
IDLE_CALLS = 1000
"""A second, of all replicas, that give nothing."""
ROW_GROUP = 4096
ROW_BYTES = 1000


@dataclass(frozen=True)
class Case:
    """One line of the table.

    :param lengths: output tokens of each row.
    :param starts: second at which each replica's engine is ready.
    :param speeds: tokens a second of each replica's slots.
    :param longest_first: whether a replica begins the longest of the rows that it holds first.
    :param pieces: rows of each piece, where they are not row groups.
    """

    name: str
    slots: int
    lengths: np.ndarray
    starts: np.ndarray
    speeds: np.ndarray
    longest_first: bool = False
    pieces: tuple[int, ...] = ()


@dataclass
class Outcome:
    """The result of a simulation.

    :param ends: when each replica's last row ended; its start if it got none.
    """

    ends: np.ndarray
    read: int
    calls: int = 0
    seconds_in_queue: float = 0.0


@dataclass
class Replica:
    """An engine, and the rows that wait for it."""

    speed: float
    free: int
    waiting: deque[int] = field(default_factory=deque)
    unanswered: int = 0
    answered: int = 0
    work: float = 0.0
    read: set[int] = field(default_factory=set)
    end: float = 0.0
    written: list[int] = field(default_factory=list)
    called: float = -1e9
    ask_below: int = 0
    is_asking: bool = False
    is_fed: bool = True


class Simulation:
    """The clock and the running rows."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.lengths = case.lengths.tolist()
        self.replicas = [Replica(float(speed), case.slots) for speed in case.speeds]
        self._events: list[tuple[float, int, Callable[..., None], Any, Any]] = []
        self._number = itertools.count()
        self.left = len(self.lengths)

    def at(self, moment: float, call: Callable[..., None], one: Any, other: Any = None) -> None:
        """Schedule `call(moment, one, other)` for a moment."""
        heapq.heappush(self._events, (moment, next(self._number), call, one, other))

    def run(self) -> np.ndarray:
        """Run until every row has ended; return when each replica ended."""
        for number, start in enumerate(self.case.starts.tolist()):
            self.replicas[number].end = start
            self.at(start, self.joined, number)
        while self.left:
            moment, _, call, one, other = heapq.heappop(self._events)
            call(moment, one, other)
        ends: np.ndarray = np.array([replica.end for replica in self.replicas])
        return ends

    def begin(self, now: float, number: int) -> None:
        """Let waiting rows take free slots."""
        replica = self.replicas[number]
        while replica.free and replica.waiting:
            row = replica.waiting.popleft()
            replica.free -= 1
            self.at(now + self.lengths[row] / replica.speed, self.ended, number, row)

    def ended(self, now: float, number: int, row: int) -> None:
        """A row has ended."""
        replica = self.replicas[number]
        replica.free += 1
        replica.unanswered -= 1
        replica.answered += 1
        replica.work += self.lengths[row]
        replica.end = now
        self.left -= 1
        self.begin(now, number)
        self.answered(now, number, row)

    def joined(self, now: float, number: int, _: Any) -> None:
        """A replica's engine is ready."""
        raise NotImplementedError

    def answered(self, now: float, number: int, row: int) -> None:
        """A row of a replica has its answer."""
        raise NotImplementedError


class Pulling(Simulation):
    """Replicas that ask the queue."""

    def __init__(self, case: Case) -> None:
        super().__init__(case)
        rows = len(case.lengths)
        sizes = case.pieces or [min(ROW_GROUP, rows - first) for first in range(0, rows, ROW_GROUP)]
        self.pieces = RowIndex(sizes, [size * ROW_BYTES for size in sizes], in_order=bool(case.pieces))
        self.queue = PullQueue(self.pieces)
        self.calls = self.bytes_read = 0
        self.seconds = 0.0

    def joined(self, now: float, number: int, _: Any) -> None:
        """A replica's engine is ready."""
        self.queue.join(str(number), self.case.slots, now)
        self.ask(now, number)
        self.at(now + FLUSH, self.flush, number)
        self.at(now + REPORT, self.report, number)

    def report(self, now: float, number: int, _: Any) -> None:
        """Say that it lives, and hear whether others wait for what it has not begun."""
        if self.queue.wants(str(number)):
            self.ask(now, number)
        self.at(now + REPORT, self.report, number)

    def flush(self, now: float, number: int, _: Any) -> None:
        """Write, and ask."""
        self.ask(now, number)
        self.at(now + FLUSH, self.flush, number)

    def answered(self, now: float, number: int, row: int) -> None:
        """A row of a replica has its answer."""
        replica = self.replicas[number]
        replica.written.append(row)
        if replica.unanswered < replica.ask_below:
            self.ask(now, number)

    def ask(self, now: float, number: int, _: Any = None) -> None:
        """Ask as soon as that is allowed."""
        replica = self.replicas[number]
        if not replica.is_asking:
            replica.is_asking = True
            idle = max(AT_MOST_EVERY, len(self.replicas) / IDLE_CALLS)
            wait = AT_MOST_EVERY if replica.is_fed else idle
            self.at(max(now, replica.called + wait) + CALL, self.called, number)

    def called(self, now: float, number: int, _: Any) -> None:
        """The call reaches the queue."""
        replica = self.replicas[number]
        replica.is_asking, replica.called = False, now
        report = PullRequest(replica.answered, replica.work, np.array(replica.written, dtype=np.int64))
        replica.written = []
        began = time.process_time()
        assignment = self.queue.pull(str(number), now, report)
        self.seconds += time.process_time() - began
        self.calls += 1
        replica.ask_below = assignment.ask_below
        replica.unanswered += len(assignment.rows)
        replica.is_fed = len(assignment.rows) > 0
        if replica.is_fed:
            # Rows that another replica has read arrive as fast as a read.
            self.at(now + OPEN, self.opened, number, assignment.rows.tolist())
            own = set(self.pieces.of(assignment.rows).tolist()) - assignment.borrow
            self.bytes_read += int(self.pieces.sizes[sorted(own - replica.read)].sum())
            replica.read |= own
        if assignment.give_back:
            back = [replica.waiting.pop() for _ in range(min(assignment.give_back, len(replica.waiting)))]
            replica.unanswered -= len(back)
            self.queue.give_back(str(number), np.array(back, dtype=np.int64))
        if replica.unanswered < replica.ask_below and self.left:
            self.ask(now, number)

    def opened(self, now: float, number: int, rows: list[int]) -> None:
        """Rows are ready for the engine."""
        waiting = self.replicas[number].waiting
        waiting.extend(rows)
        if self.case.longest_first:
            self.replicas[number].waiting = deque(sorted(waiting, key=lambda row: -self.lengths[row]))
        self.begin(now, number)

    def outcome(self) -> Outcome:
        """Run the simulation."""
        ends = self.run()
        return Outcome(ends, self.bytes_read, self.calls, self.seconds)
