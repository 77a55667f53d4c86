# SPDX-License-Identifier: Apache-2.0
"""Rows with the longest answers come first, or are dealt evenly."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest

from airflow_provider_raybatch.job.row import Request, RowFailure
from airflow_provider_raybatch.job.row_order.grouping import ByAdapter, ByLength, Grouping, sample_of

ROWS = 4000
LIMITS = np.clip(np.exp(np.random.default_rng(7).normal(np.log(200), 0.8, ROWS)).astype(int), 16, 1024)
REQUESTS = [Request(prompt="x", sampling={"max_tokens": limit}) for limit in LIMITS.tolist()]
ORDINALS = np.arange(ROWS)


def in_buckets(grouping: Grouping, requests: list[Any] = REQUESTS) -> list[list[int]]:
    """Return the rows of each bucket, in the order in which they begin."""
    keys = grouping.keys(requests)
    places = np.lexsort((ORDINALS, keys, grouping.bucket_of(keys, ORDINALS)))
    bucket_of = grouping.bucket_of(keys, ORDINALS)[places]
    return [places[bucket_of == bucket].tolist() for bucket in range(grouping.buckets)]


def test_the_longest_are_in_the_first_buckets() -> None:
    found = in_buckets(ByLength(sample_of(REQUESTS[:1000]), 1, 0.1, others=9))
    assert sorted(row for rows in found for row in rows) == ORDINALS.tolist()
    assert all(300 <= len(rows) <= 500 for rows in found)
    limits = LIMITS[[row for rows in found for row in rows]]
    # Lengths within a fifth of each other count as equal.
    assert (limits <= 1.2 * np.minimum.accumulate(limits)).all()


def test_rows_of_one_length_are_spread_over_several_buckets() -> None:
    requests = [Request(prompt="x", sampling={"max_tokens": 500 if row % 4 else 8}) for row in range(ROWS)]
    found = in_buckets(ByLength(sample_of(requests[:1000]), 1, 0.125, others=7), requests)
    assert all(abs(len(rows) - ROWS / 8) <= 5 for rows in found)
    assert [{row % 4 == 0 for row in rows} for rows in found] == 6 * [{False}] + 2 * [{True}]


def test_what_the_sample_did_not_show_has_a_bucket() -> None:
    requests = [
        Request(prompt="x"),
        Request(prompt="x", sampling={"max_tokens": 10**6}),
        Request(prompt="x", sampling={"max_tokens": 1}),
        RowFailure("render", "no column"),
    ]
    grouping = ByLength(sample_of(REQUESTS), 1, 0.25, others=3)
    keys = grouping.keys(requests)
    assert grouping.bucket_of(keys, np.arange(4)).tolist() == [0, 0, 3, 3]
    assert np.argsort(keys).tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("decks", [1, 2, 7])
def test_each_is_dealt_as_many_long_rows_as_any_other(decks: int) -> None:
    found = in_buckets(ByLength(sample_of(REQUESTS), decks))
    assert sorted(row for rows in found for row in rows) == ORDINALS.tolist()
    tokens = [LIMITS[rows].sum() for rows in found]
    assert max(tokens) <= 1.02 * min(tokens)
    for rows in found:
        limits = LIMITS[rows]
        assert (limits <= 1.2 * np.minimum.accumulate(limits)).all()


def test_the_longest_are_dealt_and_the_others_follow() -> None:
    found = in_buckets(ByLength(sample_of(REQUESTS), decks=4, dealt=0.5, others=10))
    dealt, others = found[:4], found[4:]
    assert sum(map(len, dealt)) == pytest.approx(ROWS / 2, abs=20)
    tokens = [LIMITS[rows].sum() for rows in dealt]
    assert max(tokens) <= 1.02 * min(tokens)
    for longer, shorter in itertools.pairwise([[row for rows in dealt for row in rows], *others]):
        assert len(shorter) == pytest.approx(ROWS / 20, abs=40)
        assert 1.2 * LIMITS[longer].min() >= LIMITS[shorter].max()


def test_tasks_of_one_row_do_not_all_deal_to_the_first_bucket() -> None:
    grouping = ByLength(sample_of(REQUESTS), 4)
    keys = grouping.keys(REQUESTS[:1])
    assert [grouping.bucket_of(keys, np.array([row])).item() for row in range(8)] == 2 * [0, 1, 2, 3]
    assert grouping.bucket_of(keys[:0], ORDINALS[:0]).tolist() == []


@pytest.mark.parametrize(
    ("limits", "differ"),
    [
        ([], False),
        ([64, 64, 64], False),
        ([64, 100], False),
        ([64, 128], True),
        ([64, None, 1024], False),  # nothing is known of the second
        ([64.0, 128.0], True),  # of pandas
        ([64, math.inf], False),
        ([64, "many"], False),
    ],
)
def test_lengths_that_may_be_alike_need_no_order(limits: list[Any], differ: bool) -> None:
    requests = [
        Request(prompt="x", sampling={} if limit is None else {"max_tokens": limit}) for limit in limits
    ]
    assert bool(sample_of(requests)) is differ


def test_rows_of_an_adapter_lie_together_in_one_bucket() -> None:
    """And among them those that begin alike."""
    names = [None if row % 5 == 0 else f"customer {row % 5}" for row in range(ROWS)]
    texts = [f"document {row % 7}" for row in range(ROWS)]
    requests = [Request(prompt=text, adapter=name) for text, name in zip(texts, names, strict=True)]
    found = in_buckets(ByAdapter(2000, buckets=3), requests)
    assert sorted(row for rows in found for row in rows) == ORDINALS.tolist()
    runs = [key for rows in found for key, _ in itertools.groupby(names[row] for row in rows)]
    assert len(runs) == len(set(names)) == 5
    pairs = [key for rows in found for key, _ in itertools.groupby((names[row], texts[row]) for row in rows)]
    assert len(pairs) == 5 * 7
