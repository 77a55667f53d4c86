# SPDX-License-Identifier: Apache-2.0
"""What each run of a task pays, over an attempt that dies, its retry, and a clear."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_raybatch.storage.folder import LocalFolder
from tests.support.specs import TASK
from tests.support.whole_job import attempt, dying_attempt, ended_while_writing, numbered, without_cluster


def test_a_run_pays_for_its_attempts_and_not_for_what_it_reuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row is two words ("Say 1") that the engine repeats: four tokens."""
    without_cluster(monkeypatch)
    source, place = numbered(tmp_path / "in.jsonl", 6), LocalFolder(str(tmp_path / "out"))
    assert "6 of 6 rows are kept, and the next attempt goes on" in dying_attempt(place, 0, source)
    summary = attempt(place, 1, source)
    assert summary.resumed == 6
    assert (summary.tokens_paid, summary.tokens_saved) == (24, 0)  # by the attempt that died
    cleared = {"task": TASK, "run_token": "tokeo", "submission_id": "raybatch-y-0"}
    again = attempt(place, 0, source, submission=cleared)
    assert (again.resumed, again.tokens_paid, again.tokens_saved) == (6, 0, 24)
    assert again.tokens == summary.tokens


@pytest.mark.parametrize("driver_dies", [False, True])
def test_a_run_pays_for_what_a_lost_replica_had_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, driver_dies: bool
) -> None:
    """All six rows are answered twice; the driver's note outlives it."""
    without_cluster(monkeypatch)
    source, place = numbered(tmp_path / "in.jsonl", 6), LocalFolder(str(tmp_path / "out"))
    with ended_while_writing(0):
        if driver_dies:
            dying_attempt(place, 0, source)
        summary = attempt(place, int(driver_dies), source)
    assert (summary.tokens_paid, summary.tokens_saved) == (48, 0)


def test_a_store_saves_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_cluster(monkeypatch)
    source, store = numbered(tmp_path / "in.jsonl", 6), str(tmp_path / "store")
    first = attempt(LocalFolder(str(tmp_path / "out")), 0, source, reuse=store, limit=2)
    assert (first.tokens_paid, first.tokens_saved) == (8, 0)
    night = LocalFolder(str(tmp_path / "night"))
    task = {**TASK, "run_id": "r2"}
    tonight = {"task": task, "run_token": "token", "submission_id": "raybatch-y-0"}
    summary = attempt(night, 0, source, reuse=store, submission=tonight)
    assert (summary.reused, summary.tokens_paid, summary.tokens_saved) == (2, 16, 8)
    assert summary.tokens.input + summary.tokens.output == 24
