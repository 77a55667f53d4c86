# SPDX-License-Identifier: Apache-2.0
"""Keys as an array: 16 bytes each, compared as a whole."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_raybatch.job.request import key_array
from airflow_provider_raybatch.job.reuse.store.index import matches


@given(
    st.lists(st.binary(min_size=16, max_size=16) | st.sampled_from([bytes(16), b"a" + bytes(15), b"a" * 16]))
)
def test_trailing_nul_bytes_are_part_of_a_key(keys: list[bytes]) -> None:
    column = pa.array(keys, pa.binary(16))
    there = np.unique(key_array.from_arrow(column))
    assert key_array.to_arrow(there).to_pylist() == sorted(set(keys))
    assert key_array.from_arrow(column.slice(1)).tobytes() == b"".join(keys[1:])
    high, low = key_array.halves(there)
    whole = [int(one) << 64 | int(other) for one, other in zip(high, low, strict=True)]
    assert whole == [int.from_bytes(key, "big") for key in sorted(set(keys))]


@given(st.sets(st.integers(0, 30)), st.lists(st.integers(0, 30)))
def test_all_pairs_of_equal_keys_are_matched(wanted: set[int], there: list[int]) -> None:
    # Seven first halves only, so that most comparisons are decided by the second.
    def keys(numbers: list[int]) -> key_array.Keys:
        return np.frombuffer(b"".join(b"%08d%08d" % divmod(n, 5) for n in numbers), dtype="S16")

    one, other = sorted(wanted), sorted([*there, 31])
    position, index = matches(key_array.halves(keys(one)), keys(other))
    assert sorted(zip(position.tolist(), index.tolist(), strict=True)) == [
        (i, j) for i, key in enumerate(one) for j, found in enumerate(other) if key == found
    ]


def test_nulls_and_other_types_are_refused() -> None:
    for wrong in (pa.array([None], pa.binary(16)), pa.array([b"x" * 16])):
        with pytest.raises(ValueError, match="key: a column"):
            key_array.from_arrow(wrong)
