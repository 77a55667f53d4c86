# SPDX-License-Identifier: Apache-2.0
"""As `tests/unit/job/steps/test_every_shape.py`, on a Ray."""

from __future__ import annotations

import pytest

from tests.support.repeated_task import RepeatedTask
from tests.support.shapes import TEXTS, nights, shapes

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.thorough("each kind of job once more, on a Ray; make test has them without one"),
]


@pytest.mark.parametrize("name", shapes(TEXTS))
def test_each_distinct_request_is_asked_once(task: RepeatedTask, name: str) -> None:
    for night in nights(task, shapes(TEXTS)[name], TEXTS, kills=False):
        assert night.asked == night.needed, night
