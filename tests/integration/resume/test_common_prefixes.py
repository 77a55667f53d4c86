# SPDX-License-Identifier: Apache-2.0
"""Prompts that begin alike go to one replica, wherever they lie in the input."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from airflow_provider_raybatch.contract.failures import FailureClass
from airflow_provider_raybatch.contract.manifest import BatchManifest
from airflow_provider_raybatch.job.row_order import prefixes
from tests.support.engine_log import killing_one
from tests.support.repeated_task import RepeatedTask, assert_whole

DOCUMENTS, QUESTIONS = 120, 4
ROWS = DOCUMENTS * QUESTIONS
NAME = 8
SLOTS = 32
FIELDS = {"engine": "echo", "replicas": 2, "rows_in_flight": SLOTS, "batch_size": 16, "preserve_order": True}
PACE = {"seconds_per_token": 0.25, "startup_seconds": 3.0}
"""All rows take one engine 11 s, in which a second one comes also on a busy host."""
NOTICE = "many prompts begin alike; their rows are brought together first"


@pytest.fixture
def texts(task: RepeatedTask) -> list[str]:
    """Four questions on each of 120 documents, in random order."""
    made = [
        f"{document:0{NAME}d}{'x' * 3000} question {number}"
        for document in range(DOCUMENTS)
        for number in range(QUESTIONS)
    ]
    random.Random(7).shuffle(made)
    task.input(made)
    return made


def readings(task: RepeatedTask, manifest: BatchManifest) -> Counter[str]:
    """Return in how many engines' requests each document comes."""
    found = task.engines_of(manifest)
    assert len(found) >= 2
    return Counter(name for engine in found for name in {prompt[:NAME] for prompt, _ in engine.asked})


@pytest.mark.turn(1, 7)
def test_rows_of_a_document_go_to_one_of_two_replicas(
    task: RepeatedTask, texts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = task.run(**FIELDS, engine_args=PACE)
    assert_whole(manifest, texts)
    assert NOTICE in task.notices()
    found = readings(task, manifest)
    assert len(found) == DOCUMENTS
    # At the borders of orders, and for the last rows, which are spread, a document may come to both.
    assert sum(found.values()) <= 1.15 * DOCUMENTS
    monkeypatch.setattr(prefixes, "scattered_prefix", lambda texts, rows: 0)
    as_stored = task.run(run_id="r2", **FIELDS, engine_args=PACE)
    assert_whole(as_stored, texts)
    assert NOTICE not in task.notices()
    assert sum(readings(task, as_stored).values()) >= 1.5 * DOCUMENTS


@pytest.mark.turn(3)
def test_rows_in_buckets_survive_the_death_of_a_replica(task: RepeatedTask, texts: list[str]) -> None:
    """Each is answered, and only what was in the engine or not yet written is asked again."""
    with killing_one(task.folder / "requests", answered=ROWS // 6):
        manifest = task.run(**FIELDS, engine_args=PACE, flush_interval=0.2)
    assert_whole(manifest, texts)
    assert NOTICE in task.notices()
    assert len(manifest.replicas) == 3
    assert ROWS < task.asked(manifest) <= ROWS + 4 * SLOTS


@pytest.mark.turn(5)
def test_a_resume_brings_the_missing_rows_together(task: RepeatedTask, texts: list[str]) -> None:
    failing = {**PACE, "fail_pattern": "question 3"}
    limits = {"max_error_fraction": 0.2, "max_row_attempts": 3}
    task.refused(FailureClass.TOO_MANY_ERRORS, **FIELDS, engine_args=failing, **limits, flush_interval=0.2)
    kept = task.kept()
    assert 0 < kept < ROWS
    manifest = task.run(**FIELDS, engine_args=PACE, **limits)
    assert_whole(manifest, texts)
    assert task.asked(manifest) == ROWS - kept
    assert NOTICE in task.notices()
