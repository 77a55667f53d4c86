# SPDX-License-Identifier: Apache-2.0
"""Rows whose own limits say that they take longest begin first, wherever they lie in the input."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_raybatch.contract.manifest import BatchManifest
from airflow_provider_raybatch.job.row_order import regroup
from tests.support.repeated_task import RepeatedTask, assert_whole

ROWS = 480
SHORT, LONG = 4, 32
WORDS = {"short": SHORT, "long": LONG}
FIELDS: dict[str, Any] = {
    "replicas": 2,
    "batch_size": 16,
    "preserve_order": True,
    "sampling_column": "sampling",
}
NOTICE = "rows have limits of their own; those with the longest answers come first"
ALL_AT_ONCE: dict[str, Any] = {
    "rows_in_flight": 60,
    "engine_args": {"seconds_per_token": 0.2, "startup_seconds": 3.0},
}
"""Four times as many on each of two replicas are all rows. An engine has half of the long ones for 6 s, in
which a second one comes also on a busy host."""
FEW_AT_ONCE: dict[str, Any] = {
    "rows_in_flight": 16,
    "engine_args": {"seconds_per_token": 0.05, "startup_seconds": 3.0},
}
"""Four times as many on each are 128 rows, and all take one engine 16 s."""


@pytest.fixture
def texts(task: RepeatedTask) -> list[str]:
    """The answer of each row: the last quarter of the rows is long."""
    kinds = ["long" if number >= ROWS * 3 // 4 else "short" for number in range(ROWS)]
    made = [f"{kind} {number} " + "word " * (WORDS[kind] - 2) for number, kind in enumerate(kinds)]
    task.input([text + "more" for text in made], [WORDS[kind] for kind in kinds])
    return [text.strip() for text in made]


def long_at_first(task: RepeatedTask, manifest: BatchManifest) -> list[int]:
    """Return how many of the first rows of each engine are long."""
    first = ALL_AT_ONCE["rows_in_flight"]
    return [
        sum(text.startswith("long") for text, _ in one.asked[:first]) for one in task.engines_of(manifest)
    ]


@pytest.mark.turn(1, 5)
def test_two_replicas_get_as_many_long_rows(
    task: RepeatedTask, texts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = task.run(**FIELDS, **ALL_AT_ONCE)
    assert_whole(manifest, texts)
    assert NOTICE in task.notices()
    assert len(task.engines_of(manifest)) == 2
    assert min(long_at_first(task, manifest)) >= 50
    began, ended = zip(*((one.began_seconds, one.ended_seconds) for one in manifest.replicas), strict=True)
    assert min(began) == 0.0
    assert max(began) < min(ended)
    assert max(ended) <= manifest.timing.generation_seconds + 0.1
    monkeypatch.setattr(regroup, "grouping_for", lambda *_: None)
    as_stored = task.run(run_id="r2", **FIELDS, **ALL_AT_ONCE)
    assert_whole(as_stored, texts)
    assert NOTICE not in task.notices()
    assert min(long_at_first(task, as_stored)) == 0


@pytest.mark.turn(3, 7)
def test_long_rows_begin_first(task: RepeatedTask, texts: list[str]) -> None:
    manifest = task.run(**FIELDS, **FEW_AT_ONCE)
    assert_whole(manifest, texts)
    assert NOTICE in task.notices()
    found = task.engines_of(manifest)
    assert len(found) == 2
    begun = sorted((at, text) for engine in found for text, at in engine.asked)
    last = max(place for place, (_, text) in enumerate(begun) if text.startswith("long"))
    assert last < 0.6 * ROWS  # they are the last quarter of the input
