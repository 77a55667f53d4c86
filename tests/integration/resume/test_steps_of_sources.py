# SPDX-License-Identifier: Apache-2.0
"""Columns of a source stay what they are on their way through steps, also where a job is stopped."""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_raybatch.contract.manifest import BatchManifest
from tests.support.repeated_task import RepeatedTask, rows_of

ROWS = 48
PLAIN = "draft {row.text} {row.value}"
STEPS: list[dict[str, Any]] = [
    {"name": "draft", "prompt": PLAIN},
    {"name": "doubt", "prompt": "doubt {row.draft_response}", "when": ["number", "<", ROWS // 2]},
    {"name": "judge", "prompt": "judge {row.draft_response} of {row.value} {row.number}"},
]
VALUES = [1, "one", 2.5, {"a": 1}, [1, 2], True, {"a": "x", "b": [None]}, "1"]


def typed_lines(folder: Path) -> str:
    """Values of many types in one column, and a column that some rows lack."""
    rows: list[dict[str, Any]] = [
        {"number": number, "text": f"text {number}", "value": VALUES[number % len(VALUES)]}
        for number in range(ROWS)
    ]
    for row in rows[::3]:
        row["seldom"] = row["number"]
    (folder / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(folder / "in.jsonl")


def table(first: int, rows: int) -> pa.Table:
    numbers = range(first, first + rows)
    at = [datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC) + datetime.timedelta(hours=n) for n in numbers]
    return pa.table({
        "number": pa.array(numbers, pa.int16()),
        "text": pa.array([f"text {n}" for n in numbers]).dictionary_encode(),
        "value": pa.array([Decimal(n) / 4 for n in numbers], pa.decimal128(9, 2)),
        "at": pa.array(at, pa.timestamp("us", "UTC")),
        "nested": pa.array([[{"a": n, "b": None}] if n % 3 else None for n in numbers]),
        "bytes": pa.array([bytes([n, 255]) for n in numbers], pa.binary()),
    })


def parquet(folder: Path) -> str:
    """Columns of Arrow's types, in several row groups."""
    pq.write_table(table(0, ROWS), folder / "in.parquet", row_group_size=10)
    return str(folder / "in.parquet")


def partitions(folder: Path) -> str:
    """Folders that name columns, and a prompt that reads one of them."""
    for first in range(0, ROWS, 12):
        place = folder / "lake" / f"day=2026-01-{first + 1:02d}" / f"value={first}"
        place.mkdir(parents=True)
        pq.write_table(table(first, 12).drop_columns(["value"]), place / "part.parquet")
    return str(folder / "lake")


def partitions_of_lines(folder: Path) -> str:
    for first in range(0, ROWS, 12):
        place = folder / "lake" / f"value={first}"
        place.mkdir(parents=True)
        rows = [
            {"number": n, "text": f"text {n}", "odd": n if n % 2 else str(n)}
            for n in range(first, first + 12)
        ]
        (place / "part.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(folder / "lake/*/*.jsonl")


@pytest.mark.parametrize(
    "source",
    [
        pytest.param(typed_lines, marks=pytest.mark.turn(7)),
        pytest.param(parquet, marks=pytest.mark.turn(1)),
        pytest.param(partitions, marks=pytest.mark.turn(2)),
        pytest.param(partitions_of_lines, marks=pytest.mark.turn(5)),
    ],
)
def test_columns_are_those_of_a_job_of_one_question(
    task: RepeatedTask, source: Callable[[Path], str]
) -> None:
    asked: dict[str, Any] = {"source": [source(task.folder)], "preserve_order": True}
    plain = task.run(run_id="plain", prompt=PLAIN, **asked)
    rows = rows_of(plain)
    drafts = [row["response"] for row in rows]
    before = task.asked_in_all()

    slow = {"engine_args": {"seconds_per_token": 0.04, "max_num_seqs": 8}, "rows_in_flight": 8}
    task.stopped(f"draft text {ROWS - 1}", **asked, **slow, steps=STEPS, flush_interval=0.2)
    assert 0 < task.asked_in_all() - before < ROWS * 5 // 2
    manifest = task.run(**asked, replicas=2, steps=STEPS)

    made = rows_of(manifest)
    columns = source_columns(plain)
    assert source_columns(manifest) == columns
    assert [{name: row[name] for name in columns} for row in made] == [
        {name: row[name] for name in columns} for row in rows
    ]
    assert [row["draft_response"] for row in made] == drafts
    assert [row["doubt_response"] for row in made] == [f"doubt {text}" for text in drafts[: ROWS // 2]] + [
        None
    ] * (ROWS // 2)
    # `value` is in both prompts alike, whatever the dataset makes of it.
    judged = [
        f"judge {text} of {text.removeprefix(f'draft text {number} ')} {number}"
        for number, text in enumerate(drafts)
    ]
    assert [row["judge_response"] for row in made] == judged
    assert [(one.asked, one.skipped) for one in manifest.steps or ()] == [
        (ROWS, 0),
        (ROWS // 2, ROWS // 2),
        (ROWS, 0),
    ]
    assert manifest.steps
    assert manifest.steps[0].resumed > 0


def source_columns(manifest: BatchManifest) -> dict[str, str]:
    """Return the columns that are neither an answer's, by name with their types."""
    answers = ("draft_", "doubt_", "judge_")
    own = {"response", "finish_reason", "input_tokens", "cached_tokens", "output_tokens"}
    return {
        one.name: one.type
        for one in manifest.columns
        if not one.name.startswith(answers) and one.name not in own
    }
