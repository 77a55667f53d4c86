# SPDX-License-Identifier: Apache-2.0
"""A row that kills the engine is found; too many of them end the job."""

from __future__ import annotations

import json
import math
import threading
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_raybatch.contract.failures import FailureClass
from airflow_provider_raybatch.job.run import supervision
from airflow_provider_raybatch.job.run.pipeline import Pipeline
from tests.support.repeated_task import RepeatedTask, answers


def test_a_poison_row_is_found_and_all_others_answered(task: RepeatedTask) -> None:
    texts = ["kill" if number == 21 else f"text {number}" for number in range(32)]
    task.input(texts)
    engine = {"engine": "echo", "engine_args": {"kill_pattern": "kill"}, "replicas": 1, "batch_size": 16}
    manifest = task.run(**engine, max_error_fraction=0.1)
    assert answers(manifest) == {f"r{number}": text for number, text in enumerate(texts) if text != "kill"}
    (file,) = Path(manifest.dead_letter_uri or "").iterdir()
    letter = json.loads(file.read_text())
    assert letter["ordinal"] == 21
    assert "dies of this row" in letter["reason"]
    restarts = len(manifest.replicas) - 1
    assert restarts <= math.ceil(math.log2(32)) + 1


@pytest.mark.turn(4)
@pytest.mark.parametrize(
    "asked",
    [
        {"model_task": "embed"},
        {"model_task": "classify"},
        {"model_task": "score", "query": "a {row.id}", "document": "{row.text}"},
    ],
)
def test_a_poison_row_gets_no_numbers(asked: dict[str, Any], task: RepeatedTask) -> None:
    task.input(["one", "two", "kill", "four"])
    engine = {"engine": "echo", "engine_args": {"kill_pattern": "kill"}, "replicas": 1, "sampling": {}}
    manifest = task.run(**engine, **asked, max_errors=1)
    assert (manifest.counts.ok, manifest.counts.errors_by_step) == (3, {"engine": 1})
    (file,) = Path(manifest.dead_letter_uri or "").iterdir()
    assert "dies of this row" in json.loads(file.read_text())["reason"]


@pytest.mark.turn(0)
def test_a_poison_row_fails_a_job_that_allows_no_failure(
    task: RepeatedTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = threading.Event()
    consume = Pipeline.run

    def consume_and_note(pipeline: Pipeline) -> None:
        consume(pipeline)
        ended.set()

    monkeypatch.setattr(Pipeline, "run", consume_and_note)
    # The driver checks once, and again only after all work has ended.
    monkeypatch.setattr(supervision, "_check_moving", lambda *_: ended.wait(200))
    task.input(["a", "kill", "b"])
    engine = {"engine": "echo", "engine_args": {"kill_pattern": "kill"}, "replicas": 1}
    sentence = task.refused(FailureClass.POISON_ROW, **engine)
    assert sentence.startswith("max_error_fraction: 1 of 1 failed row killed the engine each time")
