# SPDX-License-Identifier: Apache-2.0
"""Attempts and clears of a task, as whole jobs: which rows are asked again, and what a store gets of them."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_raybatch.contract.failures import FailureClass
from tests.support.repeated_task import RepeatedTask, answers, rows_of

ROWS = 20


@pytest.fixture
def reuse(task: RepeatedTask) -> dict[str, Any]:
    return {"reuse": str(task.folder / "store")}


def test_a_changed_input_pays_for_changed_rows_only(task: RepeatedTask) -> None:
    texts = [f"text {number}" for number in range(ROWS)]
    task.input(texts)
    first = task.run()
    changed = [f"new {text}" if number == 7 else text for number, text in enumerate(texts)][:-5]
    task.input(changed)
    second = task.run(token="cleared")
    assert answers(second) == {f"r{number}": text for number, text in enumerate(changed)}
    assert (task.asked(first), task.asked(second), second.counts.resumed) == (ROWS, 1, ROWS - 6)
    assert len(answers(first)) == ROWS  # its dataset is unchanged
    assert task.asked(task.run(token="other", sampling={"temperature": 0, "max_tokens": 5})) == ROWS - 5


def test_failed_rows_are_asked_again_up_to_max_row_attempts(
    task: RepeatedTask, reuse: dict[str, Any]
) -> None:
    task.input([f"text {number}" for number in range(ROWS)])
    failing = {"engine_args": {"fail_pattern": "text 7"}, **reuse}
    limits = {"max_error_fraction": 0.01, "max_row_attempts": 2}
    for _ in range(2):
        task.refused(FailureClass.TOO_MANY_ERRORS, **failing, **limits)
        assert task.kept() == ROWS - 1
    # After two failed attempts the row is a dead letter, without a third request.
    manifest = task.run(**failing, max_error_fraction=0.1, max_row_attempts=2)
    assert (task.asked(manifest), manifest.counts.ok, manifest.counts.error) == (0, ROWS - 1, 1)
    # The response store has no failure.
    other = task.run(run_id="r2", **reuse)
    assert (task.asked(other), other.counts.ok, other.counts.reused) == (1, ROWS, ROWS - 1)
    mended = task.run(token="cleared", max_row_attempts=3)
    assert (task.asked(mended), mended.counts.ok) == (1, ROWS)


@pytest.mark.parametrize("n", [1, 3])
def test_a_clear_that_regenerates_takes_nothing(task: RepeatedTask, reuse: dict[str, Any], n: int) -> None:
    """Another run takes its answers, with all of their completions."""
    task.input(["a b", "b c"])
    anew: dict[str, Any] = {"on_clear": "regenerate", "sampling": {"temperature": 0, "n": n}, **reuse}
    assert task.asked(task.run(**anew)) == 2
    cleared = task.run(token="cleared", **anew)
    assert task.asked(cleared) == 2
    other = task.run(run_id="r2", **anew)
    assert task.asked(other) == 0
    assert answers(other) == answers(cleared)
    assert [row.get("completions") for row in rows_of(other)] == [
        row.get("completions") for row in rows_of(cleared)
    ]


def test_an_unwritable_store_is_refused_at_once(task: RepeatedTask) -> None:
    task.input(["a"])
    (task.folder / "file").write_text("not a folder")
    sentence = task.refused(FailureClass.USER_ERROR, reuse=str(task.folder / "file/store"))
    assert sentence.startswith("reuse: ")
