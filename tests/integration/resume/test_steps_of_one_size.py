# SPDX-License-Identifier: Apache-2.0
"""Where few rows are left, an engine works on so many that its steps are of one size; the others can go."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.engine_log import killing_one
from tests.support.repeated_task import RepeatedTask, assert_whole
from tests.support.s3_server import S3Server

ROWS = 1200
SHORT, LONG = 4, 40
AT_ONCE, ROOM = 256, 320
"""Rows at once that let none end after the longest, whichever part a replica has; and those for which the
engine has room."""
FIELDS: dict[str, Any] = {
    "replicas": 2,
    "preserve_order": True,
    "sampling_column": "sampling",
    "deduplicate": False,
    "flush_interval": 0.5,
}


@pytest.fixture(
    params=[pytest.param("disk", marks=pytest.mark.turn(2)), pytest.param("s3", marks=pytest.mark.turn(7))]
)
def task(tmp_path: Any, ray_here: Any, request: pytest.FixtureRequest) -> RepeatedTask:
    server: S3Server | None = request.getfixturevalue("s3") if request.param == "s3" else None
    return RepeatedTask(tmp_path, server)


@pytest.fixture
def texts(task: RepeatedTask) -> list[str]:
    """The answer of each row: a few in the middle are long."""
    middle = range(ROWS // 2, ROWS // 2 + 20)
    limits = [LONG if number in middle else SHORT + number % 4 for number in range(ROWS)]
    made = [f"{number} " + "word " * (most - 1) for number, most in enumerate(limits)]
    task.input([text + "more" for text in made], limits)
    return [text.strip() for text in made]


def is_long(text: str) -> bool:
    return text.count("word") >= LONG - 1


def test_a_late_replica_gets_what_has_not_begun(task: RepeatedTask, texts: list[str]) -> None:
    """Also where the first one had taken all rows."""
    pace = {"seconds_per_token": 0.3, "startup_seconds": 1.0, "startup_spread": 3.0}
    manifest = task.run(**FIELDS, engine_args=pace)
    assert_whole(manifest, texts, task.out)
    assert task.asked(manifest) == ROWS
    both = task.engines_of(manifest)
    assert len(both) == 2
    assert 0 < max(engine.most_beside(is_long) for engine in both) <= AT_ONCE
    assert min(len(engine.asked) for engine in both) >= ROWS // 6


def test_a_killed_replica_repeats_what_its_engine_had(task: RepeatedTask, texts: list[str]) -> None:
    with killing_one(task.folder / "requests", answered=ROWS // 6):
        manifest = task.run(**FIELDS, engine_args={"seconds_per_token": 0.2, "startup_spread": 2.0})
    assert_whole(manifest, texts, task.out)
    assert len(manifest.replicas) == 3
    not_written = ROWS // 6
    assert ROWS < task.asked(manifest) <= ROWS + ROOM + not_written
