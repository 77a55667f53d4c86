# SPDX-License-Identifier: Apache-2.0
"""The digest and the name of a task."""

from __future__ import annotations

from airflow_provider_raybatch.contract.submission import TaskKey
from tests.support.specs import TASK


def test_digest_distinguishes_tasks() -> None:
    key = TaskKey(**TASK)
    others = [
        TaskKey(**{**TASK, field: value})
        for field, value in [
            ("namespace", "b"),
            ("dag_id", "b"),
            ("run_id", "b"),
            ("task_id", "b"),
            ("map_index", 0),
        ]
    ]
    digests = {key.digest, *(other.digest for other in others)}
    assert len(digests) == 6
    assert all(len(digest) == 32 for digest in digests)


def test_the_digest_is_the_same_on_every_machine_and_python() -> None:
    assert TaskKey(**TASK).digest == "0dbb522e82ca3fe4d498a03e427fc99b"


def test_for_people() -> None:
    assert str(TaskKey(**TASK)) == "nightly.label of run r1"
    assert str(TaskKey(**TASK, map_index=2)) == "nightly.label[2] of run r1"
