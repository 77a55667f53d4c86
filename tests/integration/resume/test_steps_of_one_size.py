# SPDX-License-Identifier: Apache-2.0
"""Where few rows are left, an engine works on so many that its steps are of one size; the others can go."""

from __future__ import annotations

import json
from typing import Any

import pytest

from airflow_provider_raybatch.contract.manifest import BatchManifest
from tests.support.engine_log import Engine, engines, killing_one
from tests.support.repeated_task import RepeatedTask, answers, rows_of
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


@pytest.fixture(params=["disk", pytest.param("s3", marks=pytest.mark.turn(1))])
def task(tmp_path: Any, ray_here: Any, request: pytest.FixtureRequest) -> RepeatedTask:
    server: S3Server | None = request.getfixturevalue("s3") if request.param == "s3" else None
    return RepeatedTask(tmp_path, server)


@pytest.fixture
def texts(task: RepeatedTask) -> dict[str, str]:
    """The answer of each row: a few in the middle are long."""
    made, lines = {}, []
    for number in range(ROWS):
        words = LONG if ROWS // 2 <= number < ROWS // 2 + 20 else SHORT + number % 4
        made[f"r{number}"] = f"{number} " + "word " * (words - 1)
        row = {"id": f"r{number}", "text": made[f"r{number}"] + "more", "sampling": {"max_tokens": words}}
        lines.append(json.dumps(row) + "\n")
    (task.folder / "in.jsonl").write_text("".join(lines))
    return {name: text.strip() for name, text in made.items()}


def of(task: RepeatedTask, manifest: BatchManifest) -> list[Engine]:
    """Return the engines that had rows of the submission."""
    found = engines(task.folder / "requests")
    return [one for one in found if one.submission == manifest.submission_id and one.asked]


def is_long(text: str) -> bool:
    return text.count("word") >= LONG - 1


def test_a_late_replica_gets_what_has_not_begun(task: RepeatedTask, texts: dict[str, str]) -> None:
    """Also where the first one had taken all rows."""
    pace = {"seconds_per_token": 0.3, "startup_seconds": 1.0, "startup_spread": 3.0}
    manifest = task.run(**FIELDS, engine_args=pace)
    assert answers(manifest, task.out) == texts
    assert [row["id"] for row in rows_of(manifest, task.out)] == list(texts)
    assert task.asked(manifest) == ROWS
    both = of(task, manifest)
    assert len(both) == 2
    assert 0 < max(engine.most_beside(is_long) for engine in both) <= AT_ONCE
    assert min(len(engine.asked) for engine in both) >= ROWS // 6


def test_a_killed_replica_repeats_what_its_engine_had(task: RepeatedTask, texts: dict[str, str]) -> None:
    with killing_one(task.folder / "requests", answered=ROWS // 6):
        manifest = task.run(**FIELDS, engine_args={"seconds_per_token": 0.2, "startup_spread": 2.0})
    assert answers(manifest, task.out) == texts
    assert len(manifest.replicas) == 3
    not_written = ROWS // 6
    assert ROWS < task.asked(manifest) <= ROWS + ROOM + not_written
