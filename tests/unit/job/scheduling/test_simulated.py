# SPDX-License-Identifier: Apache-2.0
"""Replicas of different speeds, in the cluster of `benchmarks/simulated_cluster.py`, end together."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.programs import program

CLUSTER = program("benchmarks/simulated_cluster.py", "simulated_cluster")
PULL = program("benchmarks/pull_queue.py", "pull_queue")
SHORT = program("benchmarks/short_answers.py", "short_answers")
REPLICAS, SLOTS = 8, 16


@pytest.mark.parametrize(("rows_a_slot", "at_least"), [(25, 0.96), (100, 0.99)])
def test_no_long_row_keeps_one_engine_alone(rows_a_slot: int, at_least: float) -> None:
    """By the share of the tokens that all slots could have made until the end."""
    random = np.random.default_rng(7)
    drawn = np.exp(random.normal(np.log(200), 0.8, rows_a_slot * REPLICAS * SLOTS)).astype(int)
    starts, speeds = random.uniform(0, 60, REPLICAS), random.uniform(10, 20, REPLICAS)
    case = CLUSTER.Case("W2", SLOTS, np.clip(drawn, 16, 1024), starts, speeds, longest_first=True)
    of_all = PULL.grouped(case)
    assert sorted(of_all.lengths) == sorted(case.lengths)
    reached = PULL.efficiency(of_all, CLUSTER.Pulling(of_all).outcome())
    assert reached >= at_least
    assert reached >= PULL.efficiency(case, CLUSTER.Pulling(case).outcome()) + 0.02


@pytest.mark.parametrize(
    ("name", "percent", "seconds"),
    [("one GPU 8 % faster", 1.2, 12.94), ("GPUs of different kinds", 3.0, 13.0), ("8,192 rows", 6.0, 3.8)],
)
def test_engines_with_short_answers_end_together(name: str, percent: float, seconds: float) -> None:
    """Each has a second of rows in it, which it can't give back."""
    ends = SHORT.ends(SHORT.CLUSTERS[name], jobs=16)
    assert 100 * ends.apart.mean() <= percent
    assert ends.seconds.mean() <= seconds
