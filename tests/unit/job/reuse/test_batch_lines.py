# SPDX-License-Identifier: Apache-2.0
"""Requests of OpenAI batch lines and of a DAG's rows that ask the same are paid for once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_raybatch.storage.folder import LocalFolder
from tests.support.openai_lines import IN_AND_OUT, ask, chat, line
from tests.support.reading import as_jsonl
from tests.support.whole_job import attempt, without_cluster

QUESTIONS = ["What is rain?", "What is snow?", "What is ice?"]


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    without_cluster(monkeypatch)


def night(folder: Path, **fields: Any) -> Any:
    """Ask the questions as a nightly DAG does, by a template over a column."""
    source = folder / "rows.jsonl"
    source.write_bytes(as_jsonl([{"thing": text.split()[-1].rstrip("?")} for text in QUESTIONS]))
    given = {"prompt": "What is {row.thing}?", "reuse": str(folder / "store"), **fields}
    return attempt(LocalFolder(str(folder / "night")), 0, str(source), **given)


def batch(folder: Path, client: str, questions: list[str], **parameters: Any) -> Any:
    """Ask questions as a client's batch does."""
    lines = [line(f"{client}-{n}", chat(text, **parameters)) for n, text in enumerate(questions)]
    source = ask(folder / f"{client}.jsonl", lines)
    given = {**IN_AND_OUT, "reuse": str(folder / "store")}
    return attempt(LocalFolder(str(folder / client)), 1, source, **given)


@pytest.mark.parametrize("in_lines", [False, True])
def test_a_night_pays_for_a_clients_batch(tmp_path: Path, in_lines: bool) -> None:
    """Whether the parameters stand in the DAG's and the lines' own places, or in the defaults of both."""
    sampling = {"temperature": 0, "max_tokens": 8}
    assert night(tmp_path, sampling=sampling if in_lines else {"temperature": 0}).reused == 0
    parameters = {"temperature": 0, **({"max_completion_tokens": 8} if in_lines else {})}
    first = batch(tmp_path, "ann", QUESTIONS, **parameters)
    assert (first.rows, first.reused) == (3, 3)
    assert first.tokens_paid == 0


def test_two_clients_and_a_night_ask_once(tmp_path: Path) -> None:
    asked = batch(tmp_path, "ann", QUESTIONS[:2], temperature=0)
    again = batch(tmp_path, "bob", [*QUESTIONS, QUESTIONS[0]], temperature=0)
    assert (asked.rows, asked.reused) == (2, 0)
    assert (again.rows, again.reused) == (4, 3)
    assert night(tmp_path, sampling={"temperature": 0}).reused == 3
    # Each client gets answers under names of its own.
    files = [*(tmp_path / "bob/data").rglob("*.jsonl")]
    found = [json.loads(text) for file in files for text in file.read_text().splitlines()]
    assert sorted(one["custom_id"] for one in found) == ["bob-0", "bob-1", "bob-2", "bob-3"]


def test_sampled_requests_are_reused_by_their_number(tmp_path: Path) -> None:
    """Another client's sampled answers are reused by number: the n-th repetition of a request in a batch."""
    batch(tmp_path, "ann", QUESTIONS[:1] * 2, temperature=1, max_tokens=8)
    more = batch(tmp_path, "bob", QUESTIONS[:1] * 3, temperature=1, max_tokens=8)
    assert (more.rows, more.reused) == (3, 2)
