# SPDX-License-Identifier: Apache-2.0
"""From the store to the rows of an input: several rows may need one response, and some may be gone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from airflow_provider_raybatch.contract.events import Notice
from airflow_provider_raybatch.contract.failures import RaybatchError
from airflow_provider_raybatch.job.input.table import table_of
from airflow_provider_raybatch.job.parts.part import Part, write_all
from airflow_provider_raybatch.job.parts.reading import MOST_BYTES
from airflow_provider_raybatch.job.request import keys
from airflow_provider_raybatch.job.reuse.cached_parts import matched
from airflow_provider_raybatch.job.reuse.earlier_parts import LedgerResponses
from airflow_provider_raybatch.job.reuse.response_store import StoredResponses, not_stored, remember
from airflow_provider_raybatch.job.reuse.row_keys import Responses
from airflow_provider_raybatch.job.reuse.store.store import ResponseStore
from airflow_provider_raybatch.job.row import RowOutcome
from airflow_provider_raybatch.storage.folder import Folder, LocalFolder
from tests.support.publishing import ONE, SEVERAL, failure, response


def key(name: str) -> bytes:
    return name.encode().ljust(16, b"\0")


def ledger(folder: Folder, submission: str, answers: dict[str, Any], completions: bool = False) -> Part:
    outcomes = [
        RowOutcome(number, answer, key=key(name)) for number, (name, answer) in enumerate(answers.items())
    ]
    task = SEVERAL if completions else ONE
    (written,) = write_all(
        folder, f"parts/{submission}/0", table_of([{"n": 1}] * len(outcomes)), outcomes, task
    )
    return written


@pytest.fixture
def notices() -> list[Notice]:
    return []


@pytest.fixture
def store(tmp_path: Path, notices: list[Notice]) -> ResponseStore:
    return ResponseStore(LocalFolder(str(tmp_path / "store")), notices.append)


def found(responses: Responses, *wanted: str) -> dict[int, tuple[Any, ...]]:
    """Return by row the found answer, and the submission that paid for it."""
    adopted = matched(np.arange(len(wanted)), keys.as_array([key(name) for name in wanted]), responses)
    table = responses.read(adopted, MOST_BYTES)
    return {
        int(adopted.ordinals[row["hit"]]): (row["output"]["response"], row["paid_by"])
        for row in table.to_pylist()
    }


def test_every_row_that_asks_gets_the_answer(
    store: ResponseStore, disk: LocalFolder, notices: list[Notice]
) -> None:
    first = ledger(disk, "s1", {"a": response("A"), "b": response("B"), "c": failure()})
    second = ledger(disk, "s2", {"d": response("D")})
    remember(store, disk, [first, second], notices.append, ONE)
    assert found(StoredResponses(store), "d", "a", "x", "b", "a", "c", "a") == {
        0: ("D", "s2"),
        1: ("A", "s1"),
        3: ("B", "s1"),
        4: ("A", "s1"),
        6: ("A", "s1"),
    }
    assert not notices


def test_store_failure_at_the_end_keeps_the_dataset(
    store: ResponseStore, disk: LocalFolder, notices: list[Notice]
) -> None:
    Path(store.folder.uri).write_text("in the way")
    remember(store, disk, [ledger(disk, "s1", {"a": response("A")})], notices.append, ONE)
    assert notices[0].level == "warning"
    assert "The response store lacks new responses" in notices[0].message


@pytest.mark.parametrize("error", [RaybatchError("TMPDIR: there is no room; free some."), OSError("no room")])
def test_a_warning_about_the_store_is_two_sentences(error: Exception) -> None:
    said = not_stored(error, shows_rows=True)
    assert ".." not in said
    assert said.endswith(". The response store lacks new responses.")


def test_the_ledger_gives_its_newest_answers(disk: LocalFolder) -> None:
    parts = [
        ledger(disk, "s1", {"a": response("old"), "b": failure("engine", "broke")}),
        ledger(disk, "s2", {"a": response("new"), "c": response("C")}),
    ]
    assert found(LedgerResponses(disk, parts, print), "c", "b", "a", "a") == {
        0: ("C", "s2"),
        2: ("new", "s2"),
        3: ("new", "s2"),
    }


def test_output_without_completions_gets_a_list_of_its_own(disk: LocalFolder) -> None:
    parts = [
        ledger(disk, "s1", {"a": response("A")}),
        ledger(disk, "s2", {"b": response("B")}, completions=True),
    ]
    responses = LedgerResponses(disk, parts, print)
    adopted = matched(np.arange(2), keys.as_array([key("a"), key("b")]), responses)
    table = responses.read(adopted, MOST_BYTES).sort_by("hit")
    outputs = SEVERAL.adapted(table["output"].combine_chunks(), SEVERAL.output_type).to_pylist()
    assert [[one["text"] for one in output["completions"]] for output in outputs] == [["A"], ["B"]]
