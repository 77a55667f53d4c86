# SPDX-License-Identifier: Apache-2.0
"""In which order batches of one model start."""

from __future__ import annotations

from datetime import UTC, datetime

from airflow_provider_raybatch.batches.queueing import LONGEST_WAIT, run_after, wait_of

NOW = 1_790_000_000.0


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


def test_no_batch_is_passed_by_much_younger_ones() -> None:
    """Neither the largest by the smallest, as long as waits only grow with the size."""
    assert run_after(NOW, 10**9) < run_after(NOW + LONGEST_WAIT + 0.001, 0)
