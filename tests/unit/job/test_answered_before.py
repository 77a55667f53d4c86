# SPDX-License-Identifier: Apache-2.0
"""Rows whose prompts are too long today, and were answered while the context was larger."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from airflow_provider_raybatch.contract.events import Event, Notice, Phase
from airflow_provider_raybatch.contract.failures import FailureClass, RaybatchError
from airflow_provider_raybatch.job.engine.base import overlong
from airflow_provider_raybatch.job.preflight import ready
from airflow_provider_raybatch.job.preflight.model_check import ModelCheck
from airflow_provider_raybatch.job.run.launch import Launch
from airflow_provider_raybatch.storage.folder import LocalFolder
from tests.support.specs import TASK
from tests.support.whole_job import attempt, dying_attempt, numbered, without_cluster

SMALL = ModelCheck(failures=((1, overlong(5000, 4096)), (3, overlong(6000, 4096))))


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    without_cluster(monkeypatch)
    return numbered(tmp_path / "in.jsonl", 6)


def in_a_small_context(patch: pytest.MonkeyPatch) -> list[Any]:
    """The model's check finds two prompts too long. Returns what engines are told to load."""
    loaded: list[Any] = []
    load = Launch.load
    patch.setattr(ready, "check_engine", lambda *_: SMALL)
    patch.setattr(Launch, "load", lambda launch, model: (loaded.append(model), load(launch, model)))
    return loaded


@pytest.mark.parametrize("how", ["retry", "clear", "store", "other input"])
def test_rows_that_have_an_answer_end_no_job(
    tmp_path: Path, source: str, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    place, fields = LocalFolder(str(tmp_path / "out")), dict[str, Any]()
    if how == "store":
        fields["reuse"] = str(tmp_path / "store")
        attempt(LocalFolder(str(tmp_path / "first")), 0, source, **fields)
    elif how == "other input":
        attempt(place, 0, numbered(tmp_path / "more.jsonl", 7))
    else:
        assert "6 of 6 rows are kept" in dying_attempt(place, 0, source)
    if how != "retry":
        fields["submission"] = {"task": TASK, "run_token": "tokeo", "submission_id": "raybatch-y-0"}
    loaded, emitted = in_a_small_context(monkeypatch), list[Event]()
    summary = attempt(place, 1, source, emitted=emitted, **fields)
    assert (summary.rows, summary.errors) == (6, 0)
    assert summary.resumed + summary.reused == 6
    assert len(loaded) == 1
    assert not [one for one in emitted if isinstance(one, Notice) and "dead letters" in one.message]


@pytest.mark.parametrize("answered", [0, 3], ids=["none", "some"])
def test_too_many_rows_without_an_answer_end_the_job(
    tmp_path: Path, source: str, monkeypatch: pytest.MonkeyPatch, answered: int
) -> None:
    """Without a store, before the keys of all rows, which would take minutes for millions."""
    store, emitted = str(tmp_path / "store") if answered else None, list[Event]()
    if answered:
        attempt(LocalFolder(str(tmp_path / "first")), 0, source, reuse=store, limit=answered)
    loaded = in_a_small_context(monkeypatch)
    with pytest.raises(RaybatchError, match=r"^max_error_fraction: (\d) of the first 6 rows fail") as caught:
        attempt(LocalFolder(str(tmp_path / "out")), 0, source, emitted=emitted, reuse=store)
    keys = [one for one in emitted if isinstance(one, Phase) and "6 rows for" in one.message]
    assert bool(keys) == bool(answered)
    assert caught.value.failure_class is FailureClass.TOO_MANY_ERRORS
    assert f"{2 - answered // 2} of the first" in str(caught.value)
    assert loaded == []
