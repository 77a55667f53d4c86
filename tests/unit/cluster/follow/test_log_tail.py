# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from airflow_provider_raybatch.cluster.follow.log_tail import first_new


@pytest.mark.parametrize(
    ("seen", "tail", "start"),
    [
        ([], ["a", "b"], 0),
        (["a", "b"], ["a", "b"], 2),
        (["a", "b"], ["a", "b", "c"], 2),
        (["a"], [], 0),
        (["a", "b", "c", "d"], ["b", "c", "d", "e"], 3),
        (["a", "b", "c", "d"], ["d", "e", "f", "g"], 1),
        (["a", "b", "c", "d"], ["e", "f", "g", "h"], None),
        # Logs that fit into the tail: their growth shows what is new, even if all lines are equal.
        (["x", "x"], ["x", "x", "x"], 2),
        (["x"], ["x", "x", "x"], 1),
        (["a", "x"], ["a", "x", "a", "x"], 2),
    ],
)
def test_where_the_new_lines_begin(seen, tail, start):
    assert first_new(seen, tail, limit=4) == start
