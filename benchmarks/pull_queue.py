# SPDX-License-Identifier: Apache-2.0
"""The pull queue in a simulated cluster, compared with chunks in order and with the ideal.

Seeded. Replicas start within a minute, and their speeds differ by up to a factor of two. The same engine gets
rows in three ways: from the queue; as chunks in order, as Ray Data gives them to living actors, eight times
the slots to each; and from one common list, longest rows first, that costs nothing to read (Graham's rule).

python benchmarks/pull_queue.py > benchmarks/results/pull_queue.md
"""

from __future__ import annotations

import dataclasses
import heapq
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from simulated_cluster import OPEN, ROW_BYTES, ROW_GROUP, Case, Outcome, Pulling, Simulation

from airflow_provider_raybatch.job.row import Request
from airflow_provider_raybatch.job.row_order import rows_to_do
from airflow_provider_raybatch.job.row_order.grouping import sample_of

SEED = 20261122


class Chunks(Simulation):
    """Chunks in order, to the living actor with the fewest."""

    def __init__(self, case: Case, rows_per_chunk: int) -> None:
        super().__init__(case)
        self.size = rows_per_chunk
        self.most = max(1, 8 * case.slots // rows_per_chunk)
        self.next = 0
        self.open: dict[int, int] = {}
        self.has = [0] * len(self.replicas)
        self.touched: set[tuple[int, int]] = set()

    def joined(self, now: float, number: int, _: Any) -> None:
        """A replica's engine is ready."""
        while self.has[number] < self.most and self.give(now, number):
            pass

    def give(self, now: float, number: int) -> bool:
        """Give a chunk, if one is left."""
        rows = list(range(self.next, min(self.next + self.size, len(self.lengths))))
        if not rows:
            return False
        self.open[self.next // self.size] = len(rows)
        self.touched.update((number, row // ROW_GROUP) for row in (rows[0], rows[-1]))
        self.next += len(rows)
        self.has[number] += 1
        replica = self.replicas[number]
        replica.unanswered += len(rows)
        self.at(now + OPEN, self.opened, number, rows)
        return True

    def opened(self, now: float, number: int, rows: list[int]) -> None:
        """Rows are ready for the engine."""
        self.replicas[number].waiting.extend(rows)
        self.begin(now, number)

    def answered(self, now: float, number: int, row: int) -> None:
        """A row of a replica has its answer."""
        chunk = row // self.size
        self.open[chunk] -= 1
        if not self.open[chunk]:
            self.has[number] -= 1
            self.give(now, number)

    def outcome(self) -> Outcome:
        """Run the simulation."""
        ends = self.run()
        rows = len(self.lengths)
        sizes = {group: min(ROW_GROUP, rows - group * ROW_GROUP) for _, group in self.touched}
        return Outcome(ends, sum(sizes[group] * ROW_BYTES for _, group in self.touched))


def ideal(case: Case) -> Outcome:
    """Simulate longest rows first, to the slot that is free first."""
    slots = [(start, number) for number, start in enumerate(case.starts.tolist()) for _ in range(case.slots)]
    heapq.heapify(slots)
    speeds, ends = case.speeds.tolist(), case.starts.copy()
    for length in np.sort(case.lengths)[::-1].tolist():
        start, number = slots[0]
        end = start + length / speeds[number]
        ends[number] = max(ends[number], end)
        heapq.heapreplace(slots, (end, number))
    return Outcome(ends, len(case.lengths) * ROW_BYTES)


def by_length(lengths: Sequence[int], replicas: int, slots: int) -> tuple[Sequence[int], tuple[int, ...]]:
    """Return lengths in the order of buckets, as CPU tasks make them, and the rows of each bucket."""
    requests = [Request(prompt="", sampling={"max_tokens": length}) for length in lengths]
    grouping = rows_to_do.by_length(
        sample_of(requests[:1000]), len(requests), len(requests) * ROW_BYTES, replicas, slots
    )
    keys = grouping.keys(requests)
    bucket_of = grouping.bucket_of(keys, np.arange(len(requests)))
    ordered = np.array(lengths)[np.lexsort((keys, bucket_of))].tolist()
    return ordered, tuple(size for size in np.bincount(bucket_of).tolist() if size)


def grouped(case: Case) -> Case:
    """Return the case with its rows in buckets by length."""
    ordered, pieces = by_length(case.lengths.tolist(), len(case.starts), case.slots)
    return dataclasses.replace(case, name=f"{case.name} of all", lengths=np.array(ordered), pieces=pieces)


def cases() -> Iterator[tuple[Case, int]]:
    """Return cases, each with the rows of a chunk, in the proportion to the slots of the job's plan."""
    for replicas, slots in ((2, 64), (8, 64), (64, 16), (1000, 2)):
        random = np.random.default_rng([SEED, replicas])
        starts = random.uniform(0, 60, replicas)
        speeds = random.uniform(10, 20, replicas)
        rows = 200 * replicas * slots
        name = f"{replicas:,} x {slots}"
        yield Case(f"W1, {name}", slots, np.full(rows, 8), starts, speeds), max(8, slots // 2)
        drawn = np.exp(random.normal(np.log(200), 0.8, 100 * replicas * slots)).astype(int)
        lengths = np.clip(drawn, 16, 1024)
        chunk = max(8, slots // 8)
        yield Case(f"W2, {name}", slots, lengths, starts, speeds), chunk
        longest = Case(f"W2, {name}, longest first", slots, lengths, starts, speeds, longest_first=True)
        yield longest, chunk
        yield grouped(longest), chunk
        fewer = dataclasses.replace(
            longest, name=f"a quarter of W2, {name}, longest first", lengths=lengths[: len(lengths) // 4]
        )
        yield fewer, chunk
        yield grouped(fewer), chunk


def efficiency(case: Case, outcome: Outcome) -> float:
    """Return the share of the tokens that all slots could make between their starts and the common end."""
    could = ((outcome.ends.max() - case.starts) * case.speeds * case.slots).sum()
    return float(case.lengths.sum() / could)


def tail(case: Case, outcome: Outcome) -> float:
    """Return the seconds between the ends of the first and the last engine."""
    return float(outcome.ends.max() - outcome.ends.min())


HEAD = """# The pull queue, simulated

Replicas of different speeds (10 to 20 tokens a second and slot) start over a minute. W1: 200 rows a slot, 8
tokens each. W2: 100 rows a slot, 16 to 1,024 tokens (lognormal, median 200, mean 262), begun in the order on
disk, the longest first of what a replica holds, or the longest first of all: in buckets, as rows with limits
of their own come. A quarter of W2: 25 rows a slot. Efficiency: the share of the tokens that all slots could
have made between each replica's start and the common end. Tail: seconds between the end of the first engine
and the last. Bytes: read from storage, as a multiple of the input (row groups of 4,096 rows). *Chunks* is the
former way: in order, to living actors, up to eight times the slots. *Ideal* knows all lengths, and reads and
calls nothing. A slot's speed does not depend on the other slots, unlike a GPU's. As in a job, replicas report
once a second, and hear then that others wait for what they have not begun. Calls: per replica and minute.
CPU: of the queue, per 1,000 rows. Made by `python benchmarks/pull_queue.py`.
"""
COLUMNS = (
    "rows, replicas x slots",
    "minutes",
    "efficiency",
    "ideal",
    "chunks",
    "tail s",
    "ideal",
    "chunks",
    "bytes",
    "chunks",
    "calls",
    "CPU ms",
)


def main() -> None:
    """Print the table; with arguments, only lines whose name contains one of them."""
    print(HEAD)
    print(f"| {' | '.join(COLUMNS)} |")
    print(f"{'|---' * len(COLUMNS)}|")
    for case, rows_per_chunk in cases():
        if len(sys.argv) > 1 and not any(word in case.name for word in sys.argv[1:]):
            continue
        print(line(case, rows_per_chunk), flush=True)


def line(case: Case, rows_per_chunk: int) -> str:
    """Return a line of the table."""
    ours, chunks, best = Pulling(case).outcome(), Chunks(case, rows_per_chunk).outcome(), ideal(case)
    rows, replicas = len(case.lengths), len(case.starts)
    minutes = ours.ends.max() / 60
    cells = [
        case.name,
        f"{minutes:.1f}",
        f"{efficiency(case, ours):.3f}",
        f"{efficiency(case, best):.3f}",
        f"{efficiency(case, chunks):.3f}",
        f"{tail(case, ours):.1f}",
        f"{tail(case, best):.1f}",
        f"{tail(case, chunks):.1f}",
        f"{ours.read / (rows * ROW_BYTES):.2f}",
        f"{chunks.read / (rows * ROW_BYTES):.2f}",
        f"{ours.calls / replicas / minutes:.0f}",
        f"{1e6 * ours.seconds_in_queue / rows:.1f}",
    ]
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
