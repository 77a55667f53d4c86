# SPDX-License-Identifier: Apache-2.0
"""Attempts over damaged parts: rows of the own ledger are asked again, what could be reused is a miss."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from airflow_provider_raybatch.contract.events import Event, Notice
from airflow_provider_raybatch.contract.failures import FailureClass
from airflow_provider_raybatch.job.parts.ledger import spent
from airflow_provider_raybatch.job.parts.reading import DamagedPartError
from airflow_provider_raybatch.job.reuse.store.store import ResponseStore
from airflow_provider_raybatch.storage.folder import LocalFolder
from tests.support.attempts import GREEDY, Attempt
from tests.support.damage import ALL, OF_CONTENT, OF_SIZE, Damage, in_a_page
from tests.support.whole_job import attempt, dying_attempt, numbered, without_cluster


def damaged(root: Path, how: Damage) -> str:
    """Damage the first part below a folder, and return its path."""
    first = min(root.rglob("_raybatch/parts/**/*.parquet"))
    first.write_bytes(how(first.read_bytes()))
    return str(first)


def warnings(emitted: list[Any]) -> list[str]:
    return [one.message for one in emitted if isinstance(one, Notice) and one.level == "warning"]


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The source of a task whose first attempt died before it published."""
    without_cluster(monkeypatch)
    source = numbered(tmp_path / "in.jsonl", 12)
    assert "; 12 of 12 rows are kept" in dying_attempt(LocalFolder(str(tmp_path / "out")), 0, source)
    return source


@pytest.mark.parametrize("how", OF_SIZE)
def test_rows_of_a_part_that_was_cut_are_asked_again(tmp_path: Path, source: str, how: Damage) -> None:
    path, emitted = damaged(tmp_path / "out", how), list[Event]()
    summary = attempt(LocalFolder(str(tmp_path / "out")), 1, source, emitted=emitted)
    assert summary.rows == 12
    assert summary.resumed == 0  # all of them were in one part
    assert warnings(emitted) == [f"parts: 1 is damaged, and the rows are asked again (for example, {path})"]


@pytest.mark.parametrize("how", OF_CONTENT)
def test_damage_that_a_commit_finds_costs_one_attempt(tmp_path: Path, source: str, how: Damage) -> None:
    path, emitted = damaged(tmp_path / "out", how), list[Event]()
    kept = "its rows count as not finished, and a retry asks them again"
    with pytest.raises(DamagedPartError, match=rf"^parts: {path} is damaged \(.*\); {kept}\.$") as raised:
        attempt(LocalFolder(str(tmp_path / "out")), 1, source)
    assert raised.value.failure_class is FailureClass.STORAGE
    summary = attempt(LocalFolder(str(tmp_path / "out")), 2, source, emitted=emitted)
    assert (summary.rows, summary.resumed) == (12, 0)
    assert warnings(emitted) == [f"parts: 1 is damaged, and the rows are asked again (for example, {path})"]


@pytest.mark.parametrize("how", ALL)
def test_a_damaged_part_of_another_input_is_a_miss(tmp_path: Path, how: Damage) -> None:
    first = Attempt(tmp_path, ["a", "b"], sampling=GREEDY).answer([0])
    path = damaged(tmp_path, how)
    first.answer([1])
    later = Attempt(tmp_path, ["a", "b", "c"], number=1, sampling=GREEDY)
    assert [(one.first, one.rows) for one in later.write_parts()] == [(1, 1)]
    told = [] if how in OF_SIZE else [f"reuse: {path} is damaged; its responses are paid for again."]
    assert warnings(later.events) == told


@pytest.mark.parametrize("how", ALL)
def test_the_store_gets_the_responses_of_whole_parts(tmp_path: Path, how: Damage) -> None:
    notices: list[Any] = []
    store = ResponseStore(LocalFolder(str(tmp_path / "store")), notices.append)
    first = Attempt(tmp_path / "one", ["a", "b"]).answer([0])
    path = damaged(tmp_path, how)
    first.answer([1]).store_in(store)
    assert Attempt(tmp_path / "two", ["a", "b"], store).asked == [0]
    told = [] if how in OF_SIZE else [f"reuse: {path} is damaged; the response store lacks its responses."]
    assert warnings(notices) == told


@pytest.mark.parametrize("how", ALL)
def test_limit_counts_what_damaged_parts_still_tell(tmp_path: Path, how: Damage) -> None:
    """Tokens are in the footer; without it they are not known, which must not end the job."""
    first = Attempt(tmp_path, ["a", "b"], max_tokens_total=100).answer([0])
    one = spent(first.job.spec, first.job.folder, "_raybatch/parts")
    damaged(tmp_path, how)
    first.answer([1])
    assert spent(first.job.spec, first.job.folder, "_raybatch/parts") == (
        2 * one if how is in_a_page else one
    )
