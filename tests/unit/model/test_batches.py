# SPDX-License-Identifier: Apache-2.0
"""A batch of the Batch API, with one or two events before any of its steps.

Events are a cancel, the end of the window, deaths, processes that are taken for dead and go on later, and
what an administrator does in Airflow. By default, one in 23 pairs is tried; ``RAYBATCH_MODEL=all`` tries all.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .batches import EVENTS, Event, cancel, expire, freeze, kill, played, quiet
from .exploring import STRIDE, thorough

_AFTER = 60
"""Steps after the first event, before which a second one comes."""


@pytest.fixture(autouse=True)
def without_logs() -> Iterator[None]:
    with quiet():
        yield


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: event.__name__)
def test_a_batch_ends_well_with_an_event_before_any_step(event: Event) -> None:
    steps = played()
    for step in range(steps):
        played((step, event))
    assert steps > 30


@pytest.mark.slow
@pytest.mark.parametrize(
    "first",
    [
        pytest.param(event, id=event.__name__, marks=[] if event in (cancel, freeze, kill) else thorough)
        for event in EVENTS
    ],
)
def test_a_batch_ends_well_with_two_events(first: Event) -> None:
    """The second one comes before a step that is reached; after the end of all, there is only the first."""
    tried = 0
    for step in range(played()):
        for later in range(step, min(step + _AFTER, played((step, first)))):
            for second in EVENTS:
                tried += 1
                if tried % STRIDE == 0 or STRIDE == 1:
                    played((step, first), (later, second))
    assert tried > 3_000


@pytest.mark.slow
@pytest.mark.parametrize("event", [cancel, pytest.param(expire, marks=thorough)], ids=["cancel", "expire"])
def test_a_frozen_driver_goes_on_after_the_end(event: Event) -> None:
    steps = played()
    for step in range(steps):
        for later in range(step, min(step + 12, played((step, freeze)))):
            played((step, freeze), (later, event))
    assert steps > 30
