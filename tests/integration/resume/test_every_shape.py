# SPDX-License-Identifier: Apache-2.0
"""As `tests/unit/job/steps/test_every_shape.py`, on a Ray."""

from __future__ import annotations

import pytest

from tests.support.repeated_task import RepeatedTask
from tests.support.shapes import ROWS, TEXTS, nights, shapes

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.thorough("each kind of job once more, on a Ray; make test has them without one"),
]


@pytest.mark.parametrize("texts", [TEXTS, ROWS])
@pytest.mark.parametrize("name", shapes(1))
def test_each_distinct_request_is_asked_once(task: RepeatedTask, name: str, texts: int) -> None:
    for night in nights(task, shapes(texts)[name], texts, kills=False):
        assert night.asked == night.needed, night
