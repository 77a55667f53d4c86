# SPDX-License-Identifier: Apache-2.0
"""Each kind of job asks each distinct request once: over rows, steps, nights and kills."""

from __future__ import annotations

import pytest

from tests.support.repeated_task import RepeatedTask
from tests.support.shapes import ROWS, TEXTS, nights, shapes

differs = pytest.mark.thorough("rows that all differ, in each kind of job; make test has equal rows")


@pytest.mark.parametrize("texts", [TEXTS, pytest.param(ROWS, marks=differs)])
@pytest.mark.parametrize("name", shapes(1))
def test_each_distinct_request_is_asked_once(task: RepeatedTask, name: str, texts: int) -> None:
    for night in nights(task, shapes(texts)[name], texts):
        assert night.asked == night.needed, night
