# SPDX-License-Identifier: Apache-2.0
"""Rows that make the same sampled request as earlier rows are numbered."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_raybatch.job.request import key_array, keys
from airflow_provider_raybatch.job.reuse.partitions import Partitions
from airflow_provider_raybatch.job.reuse.repeats import repeats_of
from airflow_provider_raybatch.job.reuse.row_keys import RequestKeys

KEY = st.sampled_from([bytes([first, *[0] * 14, last]) for first in (0, 1, 127, 128, 255) for last in (0, 9)])


@given(st.lists(st.tuples(KEY, st.booleans()), max_size=60), st.sampled_from([1, 2, 3, 100, 256]))
def test_repeats_do_not_depend_on_how_many_are_compared_at_once(
    rows: list[tuple[bytes, bool]], ranges: int
) -> None:
    """Ordinals are those of an input in which every third row makes a request."""
    own = keys.as_array([key for key, _ in rows])
    all_rows = RequestKeys(3 * np.arange(len(rows)), own, np.array([one for _, one in rows], np.bool_))
    in_ranges = Partitions(RequestKeys, ranges)
    in_ranges.add(all_rows, key_array.range_of(own, ranges))
    times: dict[bytes, int] = {}
    expected = []
    for place, (key, is_greedy) in enumerate(rows):
        if not is_greedy:
            if times.get(key):
                expected.append((3 * place, key, times[key]))
            times[key] = times.get(key, 0) + 1
    found = [
        (row, one.keys[place : place + 1].tobytes(), number)
        for one in map(repeats_of, in_ranges)
        for place, (row, number) in enumerate(zip(one.ordinals.tolist(), one.numbers.tolist(), strict=True))
    ]
    assert sorted(found) == expected
