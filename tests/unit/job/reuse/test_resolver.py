# SPDX-License-Identifier: Apache-2.0
"""The driver's memory does not grow with the keys of an input, nor with what is found for them."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pyarrow as pa
import pytest

from airflow_provider_raybatch.job.request import key_array
from airflow_provider_raybatch.job.request.key_array import Keys
from airflow_provider_raybatch.job.reuse import partitions, row_keys
from airflow_provider_raybatch.job.reuse.partitions import Partitions
from airflow_provider_raybatch.job.reuse.repeats import CachedResponses, ReuseResolver
from airflow_provider_raybatch.job.reuse.reuse import all_repeats
from airflow_provider_raybatch.job.reuse.row_keys import CachedRows, Hits, RequestKeys, ranges_for

ROWS = 500_000
AT_ONCE = 5_000


class HasMost:
    """A store that has a response to three of four keys."""

    def lookup(self, keys: Keys) -> Hits:
        places = np.flatnonzero(key_array.first_halves(keys) % 4 > 0)
        return Hits(places, places // 1000, places % 1000)

    def read(self, rows: CachedRows, most: int) -> pa.Table:
        raise NotImplementedError


@pytest.mark.parametrize("greedy", [True, False])
def test_memory_of_a_row(monkeypatch: pytest.MonkeyPatch, greedy: bool) -> None:
    """Each request is asked by two rows, which are anywhere in the input."""
    monkeypatch.setattr(row_keys, "_ROWS_PER_RANGE", AT_ONCE)
    monkeypatch.setattr(partitions, "_MOST_IN_MEMORY", 400_000)
    number = ranges_for(ROWS)
    random = np.random.default_rng(1)
    asked = random.permutation(np.arange(ROWS) // 2)
    made = np.frombuffer(random.bytes(16 * ROWS // 2), "S16")
    nothing = np.zeros(ROWS, np.bool_)
    tracemalloc.start()
    try:
        own = Partitions(RequestKeys, number)
        for start in range(0, ROWS, AT_ONCE):
            rows = np.arange(start, start + AT_ONCE)
            some = RequestKeys(rows, made[asked[rows]], np.full(len(rows), greedy))
            own.add(some, key_array.range_of(some.keys, number))
        found = CachedResponses(Partitions(CachedRows, number), HasMost(), "stored")
        resolver = ReuseResolver(ROWS, nothing, [found])
        resolver.resolve(all_repeats(own), own)
        repetitions = resolver.repetitions
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(found.rows) >= ROWS * 0.7
    assert len(repetitions) == ROWS // 2 * (not greedy)
    assert resolver.rows.sum() == len(found.rows)
    assert peak < 12 * (ROWS + len(repetitions))
