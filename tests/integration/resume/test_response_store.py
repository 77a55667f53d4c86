# SPDX-License-Identifier: Apache-2.0
"""Runs with their own folders share a response store."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_raybatch.contract.failures import FailureClass
from tests.support.repeated_task import ROWS, RepeatedTask, answers, rows_of


@pytest.fixture
def reuse(task: RepeatedTask) -> dict[str, Any]:
    return {"reuse": str(task.folder / "store")}


@pytest.mark.turn(0, 2, 4, 6)
def test_only_changed_rows_are_paid_for(task: RepeatedTask, reuse: dict[str, Any]) -> None:
    texts = [f"text {number}" for number in range(ROWS)]
    task.input(texts)
    first = task.run(**reuse)
    changed = [f"new {text}" if number % 100 == 7 else text for number, text in enumerate(texts)]
    task.input(changed)
    second = task.run(run_id="r2", **reuse)
    assert answers(second) == {f"r{number}": text for number, text in enumerate(changed)}
    paid = sum(replica.output_tokens for replica in second.replicas)
    assert (task.asked(second), second.counts.reused) == (4, ROWS - 4)
    assert paid <= 0.011 * second.tokens.output + 4
    payers = {row["id"]: row["reused_from"] for row in rows_of(second)}
    assert {payers[f"r{number}"] for number in range(ROWS) if number % 100 != 7} == {first.submission_id}
    assert {payers[f"r{number}"] for number in range(7, ROWS, 100)} == {None}
    # The third run reuses the responses of the second one.
    assert task.asked(task.run(run_id="r3", **reuse)) == 0


@pytest.mark.turn(6)
def test_a_clear_that_regenerates_takes_nothing_from_the_store(
    task: RepeatedTask, reuse: dict[str, Any]
) -> None:
    task.input(["a", "b"])
    anew: dict[str, Any] = {"on_clear": "regenerate", **reuse}
    assert task.asked(task.run(**anew)) == 2
    assert task.asked(task.run(token="cleared", **anew)) == 2
    # Another run does.
    assert task.asked(task.run(run_id="r2", **anew)) == 0


@pytest.mark.turn(4)
def test_failed_rows_are_not_reused(task: RepeatedTask, reuse: dict[str, Any]) -> None:
    task.input(["good", "bad"])
    failing = {"engine": "echo", "engine_args": {"fail_pattern": "bad"}}
    first = task.run(**failing, max_error_fraction=0.5, **reuse)
    assert (first.counts.ok, first.counts.error) == (1, 1)
    second = task.run(run_id="r2", **reuse)
    assert (task.asked(second), second.counts.ok, second.counts.reused) == (1, 2, 1)


@pytest.mark.turn(3)
def test_sampled_requests_keep_an_answer_each(task: RepeatedTask, reuse: dict[str, Any]) -> None:
    task.input(["the same words", "the same words", "others"])
    sampled: dict[str, Any] = {"sampling": {"temperature": 1.0}, **reuse}
    assert task.asked(task.run(**sampled)) == 3
    task.input(["the same words"] * 3)
    again = task.run(run_id="r2", **sampled)
    assert (task.asked(again), again.counts.reused) == (1, 2)


@pytest.mark.turn(1)
def test_all_completions_come_back(task: RepeatedTask, reuse: dict[str, Any]) -> None:
    task.input(["two words"])
    several: dict[str, Any] = {"sampling": {"temperature": 0, "n": 3}, **reuse}
    first, second = task.run(**several), task.run(run_id="r2", **several)
    assert task.asked(second) == 0
    assert rows_of(first)[0]["completions"] == rows_of(second)[0]["completions"]
    assert len(rows_of(second)[0]["completions"]) == 3


@pytest.mark.turn(1, 3, 5, 7)
def test_a_retry_stores_after_a_kill_behind_the_commit(task: RepeatedTask, reuse: dict[str, Any]) -> None:
    task.input([f"text {number}" for number in range(20)])

    def kill() -> None:
        assert not list((task.folder / "store").glob("v1/data/**/*.parquet"))
        raise SystemExit("killed between the commit and the store")

    with pytest.raises(SystemExit):
        task.run(on_commit=kill, **reuse)
    assert task.run(**reuse).counts.ok == 20  # the manifest of the killed attempt
    assert task.asked_in_all() == 20
    assert task.events[-1].event == "committed"
    assert task.asked(task.run(run_id="r2", **reuse)) == 0


def test_an_unwritable_store_is_refused_at_once(task: RepeatedTask) -> None:
    task.input(["a"])
    (task.folder / "file").write_text("not a folder")
    sentence = task.refused(FailureClass.USER_ERROR, reuse=str(task.folder / "file/store"))
    assert sentence.startswith("reuse: ")
