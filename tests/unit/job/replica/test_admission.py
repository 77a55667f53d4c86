# SPDX-License-Identifier: Apache-2.0
"""The fewest rows at once with which no answer ends after the longest."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_raybatch.job.replica.admission import AdmissionControl
from airflow_provider_raybatch.job.row import Request
from airflow_provider_raybatch.job.row_order.lengths import Costs, label

EXPECTED = Costs().expected
MOST = 1280


def labels(limits: Sequence[int]) -> list[int]:
    return [label(Request(prompt="x", sampling={"max_tokens": limit})) for limit in limits]


def level(limits: Sequence[int]) -> AdmissionControl:
    made = AdmissionControl()
    made.got(labels(limits))
    return made


def steps(limits: Sequence[int], at_once: int) -> float:
    """Return when the last answer ends, with the longest first and a step a token."""
    slots = [0.0] * at_once
    for tokens in sorted((EXPECTED[one] for one in labels(limits)), reverse=True):
        heapq.heapreplace(slots, slots[0] + tokens)
    return max(slots)


@given(st.lists(st.integers(1, 5000), min_size=1, max_size=600))
def test_no_answer_ends_after_the_longest(limits: list[int]) -> None:
    at_once = level(limits).rows(EXPECTED, len(limits))
    assert steps(limits, at_once) <= steps(limits, len(limits)) + 1e-6


@pytest.mark.parametrize("share", [2, 3])
def test_steps_are_of_one_size(share: int) -> None:
    """Within a tenth of as many rows as there are tokens for each step: with fewer it would take longer."""
    drawn = np.exp(np.random.default_rng(7).normal(np.log(200), 0.8, 3072 // share))
    limits = np.clip(drawn.astype(int), 16, 1024).tolist()
    even = sum(EXPECTED[one] for one in labels(limits)) / max(EXPECTED[one] for one in labels(limits))
    at_once = level(limits).rows(EXPECTED, MOST)
    assert even <= at_once <= 1.1 * even
    assert steps(limits, round(0.9 * even)) > steps(limits, at_once)


@pytest.mark.parametrize(
    ("limits", "most", "at_once"),
    [
        ([1024] * 300, MOST, 300),  # equally long: none may wait
        ([1024] * 300, 200, 200),  # no more than the engine takes
        (range(900, 1200), MOST, 300),  # nearly
        ([1024] + [16] * 400, MOST, 256),  # fewer would make no step shorter
        ([16, 1024] * 2000, MOST, MOST),  # so many that full steps pay
    ],
)
def test_extremes(limits: Sequence[int], most: int, at_once: int) -> None:
    assert level(limits).rows(EXPECTED, most) == at_once


def test_the_number_stays_while_the_longest_run() -> None:
    limits = [1024, 1024] + [512] * 300 + [64] * 1000
    made = level(limits)
    before = made.rows(EXPECTED, MOST)
    assert 256 < before < 512
    for one in labels([512] * 250 + [64] * 900):
        made.answered(one)
    assert made.rows(EXPECTED, MOST) == before


def test_a_row_without_a_limit_may_be_the_longest() -> None:
    """So none waits until all such rows are answered."""
    unlimited = label(Request(prompt="x" * 10))
    made = level([1024] + [16] * 400)
    made.got([unlimited])
    assert made.rows(EXPECTED, MOST) == MOST
    made.answered(unlimited)
    assert made.rows(EXPECTED, MOST) == 256
