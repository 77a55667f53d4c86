# SPDX-License-Identifier: Apache-2.0
"""Jobs with steps whose rows fail, or that end midway: what the next attempt asks, and makes of both."""

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

from airflow_provider_raybatch.contract.failures import FailureClass, RaybatchError
from airflow_provider_raybatch.contract.manifest import BatchManifest
from tests.support.repeated_task import RepeatedTask, letters_of, rows_of
from tests.support.whole_job import ended_while_writing

ROWS = 24
TEXTS = [f"text {number}" for number in range(ROWS)]
DRAFT: dict[str, Any] = {"name": "draft", "prompt": "draft {row.text}"}
JUDGE: dict[str, Any] = {"name": "judge", "prompt": "judge {row.draft_response} of {row.id}"}
STEPS: dict[str, Any] = {"steps": [DRAFT, JUDGE], "id_column": "id"}
SLOTS = 4
SLOW: dict[str, Any] = {
    "rows_in_flight": SLOTS,
    "flush_interval": 0.01,
    "engine_args": {"seconds_per_token": 0.005, "max_num_seqs": SLOTS},
}
"""At each write, few rows have an answer that is not written."""


def ends_midway(task: RepeatedTask, after: int = 2, step: int = 0, **fields: Any) -> None:
    with ended_while_writing(after, RaybatchError("the disk is away.", FailureClass.CANCELLED), step):
        task.refused(FailureClass.CANCELLED, **SLOW, **fields)


def assert_judged(manifest: BatchManifest) -> None:
    rows = rows_of(manifest)
    assert [row["draft_response"] for row in rows] == [f"draft {text}" for text in TEXTS]
    assert [row["judge_response"] for row in rows] == [
        f"judge draft {text} of r{number}" for number, text in enumerate(TEXTS)
    ]


@pytest.mark.parametrize("pattern", ["fail_pattern", "kill_pattern"])
@pytest.mark.parametrize("step", [0, 1])
def test_a_failed_row_says_which_step(task: RepeatedTask, step: int, pattern: str) -> None:
    task.input(TEXTS)
    args = {pattern: ["draft text 7", "judge draft text 7 "][step], "max_num_seqs": SLOTS}
    manifest = task.run(**STEPS, engine_args=args, max_errors=1)
    (letter,) = letters_of(manifest)
    assert (letter["id"], letter["step"]) == ("r7", ["draft.engine", "judge.engine"][step])
    assert letter["row"].get("draft_response") == [None, "draft text 7"][step]
    assert manifest.counts.ok == ROWS - 1
    assert [one.errors for one in manifest.steps or ()] == [1 - step, step]
    assert [one.skipped for one in manifest.steps or ()] == [0, 0]
    mended = task.run(token="cleared", **STEPS)
    assert task.asked(mended) == 2 - step
    assert_judged(mended)


def test_a_failed_job_keeps_the_answers_of_its_steps(task: RepeatedTask) -> None:
    task.input(TEXTS)
    fails = {"engine_args": {"fail_pattern": "judge"}, "max_error_fraction": 0.1}
    said = task.refused(FailureClass.TOO_MANY_ERRORS, **STEPS, **fails)
    assert f"answers of earlier steps are kept, too: draft {ROWS}" in said
    manifest = task.run(**STEPS)
    assert_judged(manifest)
    assert task.asked(manifest) == ROWS


def test_a_rejected_response_is_repaired(task: RepeatedTask) -> None:
    task.input(['{"score": 3}', "no JSON"])
    draft = {"name": "draft", "prompt": "{row.text}", "response_format": "json_object"}
    repair = {"name": "repair", "prompt": "{row.draft_rejected}", "when": ["draft_rejected", "is not null"]}
    manifest = task.run(steps=[{**draft, "on_rejected": "continue"}, repair])
    good, bad = rows_of(manifest)
    assert (good["draft_rejected"], good["repair_response"]) == (None, None)
    assert bad["draft_response"] == "no JSON"
    assert "not JSON" in bad["draft_rejected"] == bad["repair_response"]
    assert task.asked(manifest) == 3
    assert [(step.ok, step.rejected, step.skipped) for step in manifest.steps or ()] == [(1, 1, 0), (1, 0, 1)]


SCORE = {"type": "object", "properties": {"score": {"type": "integer"}}, "required": ["score"]}
RANKED: list[dict[str, Any]] = [
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


@pytest.mark.parametrize("driver_dies", [True, False])
def test_the_best_come_first_though_a_job_ended_midway(task: RepeatedTask, driver_dies: bool) -> None:
    """A column that JSON does not have makes a row's columns Arrow's own."""
    table = pa.table({
        "id": [f"r{n}" for n in range(ROWS)],
        "text": TEXTS,
        "raw": [bytes([n]) for n in range(ROWS)],
    })
    pq.write_table(table, task.folder / "in.parquet", row_group_size=10)
    asked: dict[str, Any] = {"source": [str(task.folder / "in.parquet")], "steps": RANKED}
    rows = rows_of(task.run(run_id="through", **asked))
    if driver_dies:
        ends_midway(task, after=0, step=2, **asked)
        manifest = task.run(**asked)
    else:
        with ended_while_writing(0, step=2):
            manifest = task.run(**asked, **SLOW)
        assert len(manifest.replicas) == 2
    assert rows_of(manifest) == rows
    moved = 0
    for row in rows:
        scores = [json.loads(one["text"])["score"] for one in row["judge_completions"]]
        assert scores == sorted(scores, reverse=True)
        assert row["judge_score"] == scores[0]
        assert row["draft_response"] == row["draft_completions"][0]["text"]
        assert row["polish_response"] == (f"polish {row['draft_response']}" if scores[0] > 0 else None)
        moved += row["judge_candidate"] > 0
    assert 0 < moved < ROWS
    draft, judge, _ = manifest.steps or ()
    assert [(one.asked, one.ok) for one in (draft, judge)] == [(ROWS, ROWS)] * 2
    assert (draft.resumed > 0 < judge.resumed) is driver_dies
    assert task.kept() == 3 * ROWS  # each answer is in one part


PLAIN = "draft {row.text} {row.value}"
THREE: list[dict[str, Any]] = [
    {"name": "draft", "prompt": PLAIN},
    {"name": "doubt", "prompt": "doubt {row.draft_response}", "when": ["number", "<", ROWS // 2]},
    {"name": "judge", "prompt": "judge {row.draft_response} of {row.value} {row.number}"},
]
VALUES = [1, "one", 2.5, {"a": 1}, [1, 2], True, {"a": "x", "b": [None]}, "1"]


def typed_lines(folder: Path) -> str:
    """Values of many types in one column, and a column that some rows lack."""
    rows: list[dict[str, Any]] = [
        {"number": number, "text": text, "value": VALUES[number % len(VALUES)]}
        for number, text in enumerate(TEXTS)
    ]
    for row in rows[::3]:
        row["seldom"] = row["number"]
    (folder / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(folder / "in.jsonl")


def table(first: int, rows: int) -> pa.Table:
    numbers = range(first, first + rows)
    at = [
        datetime.datetime(2026, 1, 1, tzinfo=datetime.timezone.utc) + datetime.timedelta(hours=n)
        for n in numbers
    ]
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


@pytest.mark.parametrize("source", [typed_lines, parquet, partitions, partitions_of_lines])
def test_columns_are_those_of_a_job_of_one_question(
    task: RepeatedTask, source: Callable[[Path], str]
) -> None:
    asked: dict[str, Any] = {"source": [source(task.folder)], "preserve_order": True}
    plain = task.run(run_id="plain", prompt=PLAIN, **asked)
    rows = rows_of(plain)
    drafts = [row["response"] for row in rows]

    ends_midway(task, **asked, steps=THREE)
    manifest = task.run(**asked, steps=THREE)

    made = rows_of(manifest)
    columns = source_columns(plain)
    assert source_columns(manifest) == columns
    assert [{name: row[name] for name in columns} for row in made] == [
        {name: row[name] for name in columns} for row in rows
    ]
    assert [row["draft_response"] for row in made] == drafts
    half = ROWS // 2
    assert [row["doubt_response"] for row in made] == [f"doubt {text}" for text in drafts[:half]] + [
        None
    ] * half
    # `value` is in both prompts alike, whatever the dataset makes of it.
    judged = [
        f"judge {text} of {text.removeprefix(f'draft text {number} ')} {number}"
        for number, text in enumerate(drafts)
    ]
    assert [row["judge_response"] for row in made] == judged
    steps = manifest.steps or []
    assert [(one.asked, one.skipped) for one in steps] == [(ROWS, 0), (half, half), (ROWS, 0)]
    assert steps[0].resumed > 0


def source_columns(manifest: BatchManifest) -> dict[str, str]:
    """Return the columns that are neither an answer's, by name with their types."""
    answers = ("draft_", "doubt_", "judge_")
    own = {"response", "finish_reason", "input_tokens", "cached_tokens", "output_tokens"}
    return {
        one.name: one.type
        for one in manifest.columns
        if not one.name.startswith(answers) and one.name not in own
    }
