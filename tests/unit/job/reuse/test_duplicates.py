# SPDX-License-Identifier: Apache-2.0
"""Rows that make the same request as an earlier row."""

from __future__ import annotations

import tracemalloc

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_raybatch.job.request import keys
from airflow_provider_raybatch.job.reuse.duplicates import repeats_of
from airflow_provider_raybatch.job.reuse.row_keys import RequestKeys

KEY = st.sampled_from([bytes([first, *[0] * 14, last]) for first in (0, 1, 127, 128, 255) for last in (0, 9)])


@given(st.lists(st.tuples(KEY, st.booleans()), max_size=60), st.integers(1, 70))
def test_repeats_do_not_depend_on_how_many_are_compared_at_once(
    rows: list[tuple[bytes, bool]], at_once: int
) -> None:
    """Ordinals are those of an input in which every third row makes a request."""
    own = keys.as_array([key for key, _ in rows])
    greedy = np.array([one for _, one in rows], np.bool_)
    found = repeats_of(RequestKeys(3 * np.arange(len(rows)), own, greedy), at_once)
    first: dict[bytes, int] = {}
    times: dict[bytes, int] = {}
    shared, numbered = [], []
    for place, (key, is_greedy) in enumerate(rows):
        if not is_greedy:
            if times.get(key):
                numbered.append((3 * place, times[key]))
            times[key] = times.get(key, 0) + 1
        elif first.setdefault(key, place) < place:
            shared.append((3 * place, 3 * first[key], key))
    assert list(zip(found.sampled.tolist(), found.numbers.tolist(), strict=True)) == numbered
    assert [
        (row, leader, found.keys[place : place + 1].tobytes())
        for place, (row, leader) in enumerate(zip(found.ordinals.tolist(), found.first.tolist(), strict=True))
    ] == shared


def test_memory_is_bounded_by_what_is_compared_at_once() -> None:
    """Beside the keys of all rows, which are 25 bytes each, and of those that repeat one."""
    rows = 200_000
    own = np.frombuffer(np.random.default_rng(1).bytes(16 * rows), "S16")
    all_rows = RequestKeys(np.arange(rows), own, np.ones(rows, np.bool_))
    tracemalloc.start()
    try:
        found = repeats_of(all_rows, rows_at_once=10_000)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert not len(found.ordinals)
    assert peak < 12 * rows
