# SPDX-License-Identifier: Apache-2.0
"""Rows in a bucket whose own limits differ, on two replicas that start one after the other."""

from __future__ import annotations

import json
from typing import Any

import pytest

from airflow_provider_raybatch.dataset import open_dataset
from tests.support.engine_log import engines

from .lake import Lake
from .ray_jobs import RayJobs
from .rest import AirflowApi

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.turn(3)]

FILES, ROWS_A_FILE = 8, 120
ROWS = FILES * ROWS_A_FILE
LONG, SHORT = 24, 3
LONG_ROWS = 48
AT_ONCE = 256
"""Rows at once with which none ends after the longest; an engine has room for 320."""
NOTICE = "rows have limits of their own; those with the longest answers come first"


def row(number: int) -> dict[str, Any]:
    """Return a row; the last ones have long answers."""
    limit = LONG if number >= ROWS - LONG_ROWS else SHORT
    words = f"{'long' if limit == LONG else 'short'} {number} " + "word " * LONG
    return {"number": number, "text": words, "sampling": {"max_tokens": limit}}


def test_the_longest_begin_first_and_none_is_lost(
    api: AirflowApi, jobs: RayJobs, lake: Lake, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.connect(api, "lake_of_limits")
    for file in range(FILES):
        rows = map(row, range(file * ROWS_A_FILE, (file + 1) * ROWS_A_FILE))
        lake.write_rows(f"limits/in/{file}.jsonl", rows)
    pace = {"seconds_per_token": 0.1, "startup_seconds": 1.0, "startup_spread": 4.0}
    run = api.trigger(
        "own_limits",
        source="s3://lake/limits/in/",
        destination="s3://lake/limits/out",
        aws_conn_id="lake_of_limits",
        prompt="{row.text}",
        engine_args={**pace, "request_log": str(tmp_path)},
    )
    task = run.wait(timeout=300).task("infer")
    assert any(NOTICE in line for line in task.log())
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", json.dumps({"conn_type": "aws", **lake.connection()}))
    answered = open_dataset(task.xcom(), "lake").to_arrow().to_pylist()
    assert sorted(one["number"] for one in answered) == list(range(ROWS))
    assert all(one["output_tokens"] == one["sampling"]["max_tokens"] for one in answered)
    both = [engine for engine in engines(tmp_path) if engine.asked]
    assert len(both) == 2
    begun = sorted((at, text) for engine in both for text, at in engine.asked)
    last = max(place for place, (_, text) in enumerate(begun) if text.startswith("long"))
    assert last < ROWS / 2
    at_once = [engine.most_beside(lambda text: text.startswith("long")) for engine in both]
    assert 0 < max(at_once) <= AT_ONCE
