# SPDX-License-Identifier: Apache-2.0
"""A retry or a clear pays only for rows that are missing, changed or failed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from airflow_provider_raybatch.contract.failures import FailureClass
from tests.support.repeated_task import ROWS, RepeatedTask, answers


@pytest.mark.turn(1, 3, 5, 7)
def test_a_changed_input_pays_for_changed_rows_only(task: RepeatedTask) -> None:
    texts = [f"text {number}" for number in range(ROWS)]
    task.input(texts)
    first = task.run()
    changed = [f"new {text}" if number % 100 == 7 else text for number, text in enumerate(texts)][:-50]
    task.input(changed)
    second = task.run(token="cleared")
    assert answers(second) == {f"r{number}": text for number, text in enumerate(changed)}
    assert task.asked(first) == ROWS
    assert task.asked(second) == 4
    assert second.counts.resumed == len(changed) - 4
    # The dataset of the first run is unchanged.
    assert len(answers(first)) == ROWS


@pytest.mark.turn(0)
def test_a_clear_keeps_valid_rows_unless_it_regenerates(task: RepeatedTask) -> None:
    task.input([f"text {number}" for number in range(ROWS)])
    assert task.asked(task.run()) == ROWS
    assert task.asked(task.run(token="cleared")) == 0
    assert task.asked(task.run(token="anew", on_clear="regenerate")) == ROWS
    assert task.asked(task.run(token="other", sampling={"temperature": 0, "max_tokens": 5})) == ROWS


@pytest.mark.turn(3)
def test_failed_rows_are_asked_again_up_to_max_row_attempts(task: RepeatedTask) -> None:
    task.input([f"text {number}" for number in range(20)])
    failing = {"engine": "echo", "engine_args": {"fail_pattern": "text 7"}}
    limits = {"max_error_fraction": 0.01, "max_row_attempts": 2}
    task.refused(FailureClass.TOO_MANY_ERRORS, **failing, **limits)
    assert task.kept() == 19
    task.refused(FailureClass.TOO_MANY_ERRORS, **failing, **limits)
    assert task.kept() == 19
    # After two failed attempts the row is a dead letter, without a third request.
    manifest = task.run(**failing, max_error_fraction=0.1, max_row_attempts=2)
    assert (task.asked(manifest), manifest.counts.ok, manifest.counts.error) == (0, 19, 1)
    mended = task.run(token="cleared", max_row_attempts=3)
    assert (task.asked(mended), mended.counts.ok) == (1, 20)


@pytest.mark.turn(6)
def test_ids_name_the_rows(task: RepeatedTask) -> None:
    task.input(["good", "bad"])
    echo = {"engine": "echo", "engine_args": {"fail_pattern": "bad"}}
    manifest = task.run(**echo, id_column="id", max_error_fraction=0.5)
    (file,) = Path(manifest.dead_letter_uri or "").iterdir()
    assert json.loads(file.read_text())["id"] == "r1"


@pytest.mark.turn(0, 2, 4, 6)
def test_equal_greedy_requests_are_asked_once(task: RepeatedTask) -> None:
    texts = [f"text {number % 40}" for number in range(ROWS)]
    task.input(texts)
    manifest = task.run()
    assert answers(manifest) == {f"r{number}": text for number, text in enumerate(texts)}
    assert task.asked(manifest) == 40
    assert (manifest.counts.ok, manifest.counts.duplicates) == (ROWS, ROWS - 40)
