# SPDX-License-Identifier: Apache-2.0
"""W2 of `throughput/workloads.py` on one and two simulated GPUs, in the order on disk and longest first.

A step of a GPU takes 5.5 ms and 56 microseconds a row, up to 1,024 rows; so `LLM.generate` takes 54 s for W2,
as on an H200. The second engine is ready 0.4 s after the first, as warm ones are at most. The queue is the
real one; a replica begins its rows in the order in which they came, or the longest first: known from the
start, as by a limit or from an earlier night, or learned from the rows that have finished, where prompts of a
length have answers of a length. *Of all*: the rows come in buckets by length, so that each GPU gets as many
long ones.

python benchmarks/order_of_rows.py
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from pull_queue import by_length

from airflow_provider_raybatch.job.row import Request
from airflow_provider_raybatch.job.row_order.lengths import Costs
from airflow_provider_raybatch.job.row_order.lengths import label as of_request
from airflow_provider_raybatch.job.scheduling.messages import PullRequest
from airflow_provider_raybatch.job.scheduling.queue import PullQueue
from airflow_provider_raybatch.job.scheduling.row_index import RowIndex

SEED, DRAWS = 20261015, 8
STEP, STEP_A_ROW = 0.0055, 56e-6
RUNS, SLOTS = 1024, 1280
"""Rows that an engine runs at once, and that are in it."""
LATE = 0.4
CALL, OPEN = 0.01, 0.3
"""Seconds that a call takes, and that reading and rendering take."""
FLUSH, AT_MOST_EVERY, IDLE, REPORT = 10.0, 0.2, 0.2, 0.5
ROW_GROUP, ROW_BYTES = 4096, 1000
ON_DISK, LEARNED, KNOWN = "on disk", "longest first, learned", "longest first, known"
OF_ALL = "longest first of all"


def label(length: int) -> int:
    """The class of a row whose prompt is as long as its answer."""
    return of_request(Request(prompt="x" * length))


@dataclass
class Gpu:
    """A replica: each running row gets a token per step.

    :param steps: number of steps so far.
    :param runs: running rows, by the step at which they end.
    :param waits: rows that have not begun, in order.
    """

    at: float
    steps: float = 0.0
    runs: list[tuple[float, int]] = field(default_factory=list)
    waits: list[tuple[int, int, int]] = field(default_factory=list)
    unanswered: int = 0
    answered: int = 0
    work: float = 0.0
    written: list[int] = field(default_factory=list)
    end: float = 0.0
    called: float = -1e9
    is_asking: bool = False
    is_fed: bool = True
    ask_below: int = 0
    version: int = 0

    def go_on(self, now: float) -> None:
        """Count the steps up to now."""
        if self.runs:
            self.steps += (now - self.at) / (STEP + STEP_A_ROW * len(self.runs))
        self.at = now

    def next_end(self) -> float:
        """Return when the first of its rows ends, if none begins before."""
        return self.at + max(0.0, self.runs[0][0] - self.steps) * (STEP + STEP_A_ROW * len(self.runs))


class World:
    """GPUs around the queue."""

    def __init__(self, lengths: Sequence[int], starts: list[float], order: str) -> None:
        rows = len(lengths)
        sizes: Sequence[int] = [min(ROW_GROUP, rows - first) for first in range(0, rows, ROW_GROUP)]
        if order == OF_ALL:
            lengths, sizes = by_length(lengths, len(starts), SLOTS)
        self.lengths, self.starts, self.order = lengths, starts, order
        self.queue = PullQueue(
            RowIndex(sizes, [size * ROW_BYTES for size in sizes], in_order=order == OF_ALL)
        )
        self.queue.starting = len(starts)
        self.gpus = [Gpu(start) for start in starts]
        self.costs = [Costs() for _ in starts]
        self.number = itertools.count()
        self.events: list[tuple[float, int, Callable[..., None], int, Any]] = []
        self.left = rows

    def run(self) -> list[float]:
        """Run the simulation; return when each GPU ends."""
        for number, start in enumerate(self.starts):
            self.then(start, self.join, number)
        while self.left:
            now, _, call, number, other = heapq.heappop(self.events)
            call(now, number, other)
        return [gpu.end for gpu in self.gpus]

    def then(self, moment: float, call: Callable[..., None], number: int, other: Any = None) -> None:
        """Schedule `call(moment, number, other)`."""
        heapq.heappush(self.events, (moment, next(self.number), call, number, other))

    def join(self, now: float, number: int, _: Any) -> None:
        """An engine is ready."""
        self.queue.starting -= 1
        self.queue.join(str(number), SLOTS, now)
        self.flush(now, number, None)
        self.report(now, number, None)

    def flush(self, now: float, number: int, _: Any) -> None:
        """Write, and ask."""
        self.ask(now, number)
        self.then(now + FLUSH, self.flush, number)

    def report(self, now: float, number: int, _: Any) -> None:
        """Send a replica's report, whose reply may make it ask."""
        if self.queue.wants(str(number)):
            self.ask(now, number)
        self.then(now + REPORT, self.report, number)

    def ask(self, now: float, number: int) -> None:
        """Ask as soon as that is allowed."""
        gpu = self.gpus[number]
        if not gpu.is_asking:
            gpu.is_asking = True
            pause = AT_MOST_EVERY if gpu.is_fed else IDLE
            self.then(max(now, gpu.called + pause) + CALL, self.called, number)

    def called(self, now: float, number: int, _: Any) -> None:
        """The call reaches the queue."""
        gpu = self.gpus[number]
        gpu.is_asking, gpu.called = False, now
        report = PullRequest(gpu.answered, gpu.work, np.array(gpu.written, dtype=np.int64))
        gpu.written = []
        assignment = self.queue.pull(str(number), now, report)
        gpu.ask_below, gpu.is_fed = assignment.ask_below, len(assignment.rows) > 0
        gpu.unanswered += len(assignment.rows)
        if gpu.is_fed:
            self.then(now + OPEN, self.opened, number, assignment.rows.tolist())
        if assignment.give_back:
            gpu.waits.sort()
            back = [gpu.waits.pop()[-1] for _ in range(min(assignment.give_back, len(gpu.waits)))]
            gpu.unanswered -= len(back)
            self.queue.give_back(str(number), np.array(back, dtype=np.int64))
        if gpu.unanswered < gpu.ask_below:
            self.ask(now, number)

    def opened(self, now: float, number: int, rows: list[int]) -> None:
        """Rows are ready for the engine."""
        for row in rows:
            heapq.heappush(self.gpus[number].waits, (-self.rank(number, row), next(self.number), row))
        self.begin(now, number)

    def rank(self, number: int, row: int) -> int:
        """The higher, the earlier a replica lets the row begin."""
        if self.order == LEARNED:
            return self.costs[number].rank(label(self.lengths[row]))
        return round(4 * np.log2(self.lengths[row])) if self.order in {KNOWN, OF_ALL} else 0

    def begin(self, now: float, number: int) -> None:
        """Let rows begin where there is room."""
        gpu = self.gpus[number]
        gpu.go_on(now)
        while gpu.waits and len(gpu.runs) < RUNS:
            row = heapq.heappop(gpu.waits)[-1]
            heapq.heappush(gpu.runs, (gpu.steps + self.lengths[row], row))
        gpu.version += 1
        if gpu.runs:
            self.then(gpu.next_end(), self.ended, number, gpu.version)

    def ended(self, now: float, number: int, version: int) -> None:
        """A row has ended, unless others have begun since."""
        gpu = self.gpus[number]
        if version != gpu.version:
            return
        gpu.go_on(now)
        _, row = heapq.heappop(gpu.runs)
        gpu.unanswered -= 1
        gpu.answered += 1
        gpu.work += self.lengths[row]
        gpu.written.append(row)
        gpu.end = now
        self.left -= 1
        if self.costs[number].learn(label(self.lengths[row]), self.lengths[row]):
            gpu.waits = [(-self.rank(number, row), place, row) for _, place, row in gpu.waits]
            heapq.heapify(gpu.waits)
        self.begin(now, number)
        if gpu.unanswered < gpu.ask_below:
            self.ask(now, number)


def main() -> None:
    """Print the table: means over some draws of the lengths, and the largest gap between two ends."""
    print(
        "| rows of W2 | order | one GPU, s | two GPUs, s | ratio | ends apart, s | at most |\n"
        "|---|---|---|---|---|---|---|"
    )
    for rows in (3072, 6144, 12_288):
        for order in (ON_DISK, LEARNED, KNOWN, OF_ALL):
            one, two, apart = np.array([seconds(draw, rows, order) for draw in range(DRAWS)]).T
            cells = (
                f"{one.mean():.1f}",
                f"{two.mean():.1f}",
                f"{(one / two).mean():.2f}",
                f"{apart.mean():.1f}",
                f"{apart.max():.1f}",
            )
            print(f"| {rows:,} | {order} | {' | '.join(cells)} |", flush=True)


def seconds(draw: int, rows: int, order: str) -> tuple[float, float, float]:
    """Return the seconds of one GPU, those of two, and those between their ends."""
    drawn = np.exp(np.random.default_rng([SEED, draw]).normal(np.log(200), 0.8, rows)).astype(int)
    lengths = np.clip(drawn, 16, 1024).tolist()
    one, two = World(lengths, [0.0], order).run(), World(lengths, [0.0, LATE], order).run()
    return one[0], max(two), max(two) - min(two)


if __name__ == "__main__":
    main()
