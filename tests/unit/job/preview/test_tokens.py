# SPDX-License-Identifier: Apache-2.0
"""Which rows a preview reads."""

from __future__ import annotations

import pytest

from airflow_provider_raybatch.job.input.survey import Chunk
from airflow_provider_raybatch.job.preview.tokens import Picked, picked_rows, picked_runs, shares

CHUNKS = [Chunk(0, start, rows, -1, 0, 0) for start, rows in ((0, 5), (5, 3), (8, 12))]


def ordinals(picked: Picked) -> list[int]:
    return [chunk.ordinal + position for chunk, positions in picked for position in positions]


@pytest.mark.parametrize("wanted", [1, 5, 6, 20, 100])
def test_the_first_rows(wanted: int) -> None:
    assert ordinals(picked_rows(CHUNKS, 20, wanted, None)) == list(range(min(20, wanted)))


def test_a_sample_has_each_row_once_and_in_order() -> None:
    for seed in range(20):
        found = ordinals(picked_rows(CHUNKS, 20, 7, seed))
        assert found == sorted(set(found))
        assert len(found) == 7
        assert found == ordinals(picked_rows(CHUNKS, 20, 7, seed))
    assert ordinals(picked_rows(CHUNKS, 20, 20, 1)) == list(range(20))


def test_runs_are_whole_chunks() -> None:
    assert ordinals(picked_runs(CHUNKS, None, 0)) == list(range(20))
    assert ordinals(picked_runs(CHUNKS, 20, 0)) == list(range(20))
    some = picked_runs(CHUNKS, 6, 3)
    assert 6 <= len(ordinals(some)) < 20
    assert [chunk for chunk, _ in some] == sorted((chunk for chunk, _ in some), key=lambda one: one.ordinal)


def test_an_empty_input_has_no_rows() -> None:
    assert picked_rows([], 0, 5, None) == picked_rows([], 0, 5, 1) == picked_runs([], 5, 0) == []


@pytest.mark.parametrize(
    ("most", "fewest", "expected"),
    [
        (1, 1, [1000]),
        (3, 1, [384, 384, 232]),
        (64, 400, [512, 488]),
        (64, 5000, [1000]),
    ],
)  # fmt: skip
def test_shares_are_neighbours_of_one_size(most: int, fewest: int, expected: list[int]) -> None:
    chunks = [Chunk(0, start, min(128, 1000 - start), 0, 0, 1000) for start in range(0, 1000, 128)]
    picked: Picked = [(chunk, range(chunk.rows)) for chunk in chunks]
    made = shares(picked, most, fewest)
    assert [sum(chunk.rows for chunk, _ in share) for share in made] == expected
    assert [one for share in made for one in share] == picked
    assert shares([], most, fewest) == [[]]
