# SPDX-License-Identifier: Apache-2.0
"""In which order batches of one model start."""

from __future__ import annotations

import heapq
import random
from dataclasses import dataclass, field
from datetime import UTC, datetime

from airflow_provider_raybatch.batches.queueing import LONGEST_WAIT, run_after, wait_of

NOW = 1_790_000_000.0


@dataclass(order=True)
class Waiting:
    run_after: datetime
    created: float = field(compare=False)
    lines: int = field(compare=False)


def started(batches: list[tuple[float, int]], lines_a_second: float) -> list[Waiting]:
    """Batches in the order in which one engine takes them, as Airflow starts queued runs."""
    arriving = sorted(batches)
    queue: list[Waiting] = []
    order, now = [], 0.0
    while arriving or queue:
        now = max(now, arriving[0][0]) if not queue else now
        while arriving and arriving[0][0] <= now:
            created, lines = arriving.pop(0)
            heapq.heappush(queue, Waiting(run_after(NOW + created, lines), created, lines))
        order.append(heapq.heappop(queue))
        now += 1 + order[-1].lines / lines_a_second
    return order


def test_runs_are_never_to_start_in_the_future() -> None:
    created = datetime.fromtimestamp(NOW, UTC)
    for lines in (0, 1, 50_000, 2_159_999, 2_160_000, 10**9):
        assert run_after(NOW, lines) <= created


def test_waits_grow_with_the_size_up_to_the_longest() -> None:
    waits = [wait_of(lines) for lines in (0, 1, 1_000, 100_000, 10**7, 10**9)]
    assert waits == sorted(waits)
    assert waits[0] == 0
    assert waits[-2:] == [LONGEST_WAIT, LONGEST_WAIT]


def test_a_small_batch_passes_a_large_one() -> None:
    assert run_after(NOW + 60, 10) < run_after(NOW, 100_000)


def test_of_equal_batches_the_older_starts_first() -> None:
    assert run_after(NOW, 5_000) < run_after(NOW + 0.001, 5_000)


def test_age_wins_in_the_end() -> None:
    assert run_after(NOW, 10**9) < run_after(NOW + LONGEST_WAIT + 0.001, 0)


def test_no_batch_is_passed_by_much_younger_ones() -> None:
    """A queue that never becomes empty: more arrives than the engine can do, for three days."""
    chance = random.Random(7)
    sizes = [1, 10, 1_000, 20_000, 100_000, 3_000_000]
    batches = [(chance.uniform(0, 3 * 86400), chance.choice(sizes)) for _ in range(1_500)]
    order = started(batches, lines_a_second=100)
    for place, one in enumerate(order):
        younger = [other for other in order[:place] if other.created > one.created + LONGEST_WAIT]
        assert younger == []


def test_a_small_batch_starts_next_in_a_full_queue() -> None:
    large = [(float(second), 100_000) for second in range(20)]
    order = started([*large, (30.0, 5)], lines_a_second=100)
    assert [one.lines for one in order[:2]] == [100_000, 5]
