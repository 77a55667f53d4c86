# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from airflow_provider_raybatch.job.scheduling.prefetch_target import Load, to_fill, to_move


def load(
    rows: int, pace: float | None = 10.0, heard: float = 5.0, slots: int = 100, at_once: int = 10
) -> Load:
    return Load(rows, heard, pace, slots, at_once)


@pytest.mark.parametrize(
    ("own", "other", "rows"),
    [
        (load(100), load(300), 100),  # both end together
        (load(300), load(100), 0),
        (load(100), load(300, heard=1.0), 80),  # has answered 40 since it was heard of
        (load(100), load(140, heard=1.0), 0),
        (load(0), load(50, at_once=45), 5),  # what is in the engine stays
        (load(0), load(50, at_once=60), 0),
        (load(160), load(180), 0),  # at most a sixteenth of what the replica has is not worth a move
        (load(160), load(184), 11),
        (load(0), load(12, at_once=10), 2),  # one without rows takes each
    ],
)
def test_both_end_together(own: Load, other: Load, rows: int) -> None:
    assert to_move(5.0, own, other) == rows


def test_the_quicker_one_has_more() -> None:
    rows = to_move(5.0, load(100, pace=30.0), load(300, pace=10.0))
    assert (100 + rows) / 30 == pytest.approx((300 - rows) / 10, abs=0.2)


@pytest.mark.parametrize(("own", "its"), [(None, None), (20.0, None), (None, 10.0)])
def test_an_unknown_pace_is_taken_from_the_slots(own: float | None, its: float | None) -> None:
    assert to_move(5.0, load(0, own, slots=200), load(300, its, slots=100)) == 200


@pytest.mark.parametrize(
    ("has", "ahead", "rows"), [(4, 20, 6), (4, 5, 3), (4, 1, 1), (10, 20, 0), (30, 20, 0)]
)
def test_one_that_has_room_gets_half_of_what_waits(has: int, ahead: int, rows: int) -> None:
    assert to_fill(load(has), ahead) == rows
