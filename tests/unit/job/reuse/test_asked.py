# SPDX-License-Identifier: Apache-2.0
"""A job whose rows are asked again says what has changed since the task's last run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_raybatch.contract.events import Notice
from airflow_provider_raybatch.storage.folder import LocalFolder
from tests.support.specs import TASK
from tests.support.whole_job import attempt, numbered, without_cluster

AGAIN = "rows whose request is another one now are asked again"


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    without_cluster(monkeypatch)
    return numbered(tmp_path / "in.jsonl", 3)


def told(place: LocalFolder, number: int, source: str, **fields: Any) -> list[str]:
    """Run a job, and return what its log says of rows that are asked again."""
    emitted: list[Any] = []
    attempt(place, number, source, emitted=emitted, **fields)
    return [one.message for one in emitted if isinstance(one, Notice) and "again" in one.message]


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        ({"prompt": "Tell {row.id}"}, "prompt has"),
        ({"model": "another", "sampling": {"temperature": 1}}, "model and sampling have"),
        ({"prompt": "Tell {row.id}", "system_prompt": "Be brief.", "chat_template_kwargs": {"a": 1}},
         "prompt, system_prompt and chat_template_kwargs have"),
        ({"engine_args": {"max_model_len": 100}}, "engine has"),
    ],
)  # fmt: skip
def test_a_cleared_task_names_what_has_changed(
    tmp_path: Path, source: str, arguments: dict[str, Any], what: str
) -> None:
    place = LocalFolder(str(tmp_path / "out"))
    assert told(place, 0, source) == []
    assert told(place, 1, source, token="b") == []  # nothing was asked
    assert told(place, 2, source, token="c", **arguments) == [
        f"since the task's last run {what} changed: {AGAIN}"
    ]
    assert told(place, 3, source, token="d", **arguments) == []


def test_on_clear_regenerate_is_told(tmp_path: Path, source: str) -> None:
    place = LocalFolder(str(tmp_path / "out"))
    assert told(place, 0, source, on_clear="regenerate") == []
    sentence = "all rows are asked again, since the task was cleared and on_clear is 'regenerate'"
    assert told(place, 1, source, token="b", on_clear="regenerate") == [sentence]


def test_answers_to_just_these_requests_leave_nothing_to_tell(tmp_path: Path, source: str) -> None:
    """They are of an earlier input, or of an attempt that this one goes on from."""
    place, more = LocalFolder(str(tmp_path / "out")), numbered(tmp_path / "more.jsonl", 4)
    assert told(place, 0, source) == []
    assert len(told(place, 1, source, token="b", prompt="Tell {row.id}")) == 1
    assert told(place, 2, more, token="c") == []
    for number, limit in enumerate([2, 3]):
        again = told(place, 3 + number, source, token="d", on_clear="regenerate", limit=limit)
        assert len(again) == 1 - number


def test_what_an_older_version_did_not_note_has_not_changed(tmp_path: Path, source: str) -> None:
    place = LocalFolder(str(tmp_path / "out"))
    assert told(place, 0, source) == []
    (note,) = (tmp_path / "out").rglob("asked.json")
    kept = json.loads(note.read_bytes())
    del kept["asked"]["sampling"]
    note.write_text(json.dumps(kept))
    (sentence,) = told(place, 1, source, token="b", prompt="Tell {row.id}")
    assert "last run prompt has changed" in sentence


def test_a_response_store_tells_it_from_night_to_night(tmp_path: Path, source: str) -> None:
    sentences = []
    for night, prompt in enumerate(["Say {row.id}", "Say {row.id}", "Tell {row.id}"]):
        place = LocalFolder(str(tmp_path / str(night)))
        task = {**TASK, "run_id": str(night)}
        sentences += told(place, night, source, task=task, prompt=prompt, reuse=str(tmp_path / "store"))
    assert sentences == [f"since the task's last run prompt has changed: {AGAIN}"]


@pytest.mark.parametrize("content", [b"", b"[]", b'{"at": "x"}', b'{"at": 1, "asked": 2}', b"\xff"])
def test_a_damaged_note_costs_a_line_of_the_log_alone(tmp_path: Path, source: str, content: bytes) -> None:
    place = LocalFolder(str(tmp_path / "out"))
    assert told(place, 0, source) == []
    (note,) = (tmp_path / "out").rglob("asked.json")
    note.write_bytes(content)
    assert told(place, 1, source, token="b", prompt="Tell {row.id}") == []
