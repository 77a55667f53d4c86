# SPDX-License-Identifier: Apache-2.0
"""Drafts that a judge ranks, over attempts that were stopped and replicas that were killed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.engine_log import killing_one
from tests.support.repeated_task import RepeatedTask, rows_of
from tests.support.s3_server import S3Server

ROWS, SLOTS = 48, 8
SCORE = {"type": "object", "properties": {"score": {"type": "integer"}}, "required": ["score"]}
STEPS: list[dict[str, Any]] = [
    {"name": "draft", "prompt": "a b {row.text}", "sampling": {"temperature": 1.0, "n": 3}},
    {
        "name": "judge",
        "prompt": "judge {row.draft_response}",
        "each": "draft",
        "best": "score",
        "response_format": SCORE,
    },
    {"name": "polish", "prompt": "polish {row.draft_response}", "when": ["judge_score", ">", 0]},
]
SLOW: dict[str, Any] = {
    "rows_in_flight": SLOTS,
    "flush_interval": 0.3,
    "engine_args": {"seconds_per_token": 0.1, "max_num_seqs": SLOTS},
}


def source_of(folder: Path) -> str:
    """A column that JSON does not have makes a row's columns Arrow's own."""
    rows = [{"id": f"r{n}", "text": f"text {n}", "raw": bytes([n])} for n in range(ROWS)]
    pq.write_table(pa.Table.from_pylist(rows), folder / "in.parquet", row_group_size=10)
    return str(folder / "in.parquet")


def assert_best_first(rows: list[dict[str, Any]]) -> None:
    assert [row["id"] for row in rows] == [f"r{n}" for n in range(ROWS)]
    moved = 0
    for row in rows:
        scores = [json.loads(one["text"])["score"] for one in row["judge_completions"]]
        assert scores == sorted(scores, reverse=True)
        assert row["judge_score"] == scores[0]
        assert row["draft_response"] == row["draft_completions"][0]["text"]
        polished = f"polish {row['draft_response']}" if scores[0] > 0 else None
        assert row["polish_response"] == polished
        moved += row["judge_candidate"] > 0
    assert 0 < moved < ROWS


@pytest.mark.turn(5)
def test_a_stopped_job_ranks_as_one_that_ran_through(task: RepeatedTask) -> None:
    asked: dict[str, Any] = {"source": [source_of(task.folder)], "steps": STEPS}
    task.stopped(f"a b text {ROWS - 1}", **asked, **SLOW)
    first = task.asked_in_all()
    manifest = task.run(**asked)
    rows = rows_of(manifest)
    assert_best_first(rows)
    draft, judge, _ = manifest.steps or ()
    assert (draft.ok, judge.ok, draft.resumed > 0) == (ROWS, ROWS, True)
    through = task.run(run_id="through", **asked)
    assert rows_of(through) == rows
    assert 0 < first < task.asked(through)


@pytest.mark.parametrize(
    "place", [pytest.param("disk", marks=pytest.mark.turn(6)), pytest.param("s3", marks=pytest.mark.turn(3))]
)
def test_another_replica_goes_on_with_what_was_ranked(
    place: str, tmp_path: Path, ray_here: Any, request: pytest.FixtureRequest
) -> None:
    server: S3Server | None = None if place == "disk" else request.getfixturevalue("s3")
    task = RepeatedTask(tmp_path, server)
    asked: dict[str, Any] = {"source": [source_of(task.folder)], "steps": STEPS}
    with killing_one(task.folder / "requests", answered=4 * SLOTS):
        manifest = task.run(**asked, **SLOW, replicas=2)
    assert len(manifest.replicas) == 3
    rows = rows_of(manifest, task.out)
    assert_best_first(rows)
    assert [(one.asked, one.ok) for one in (manifest.steps or ())[:2]] == [(ROWS, ROWS)] * 2
