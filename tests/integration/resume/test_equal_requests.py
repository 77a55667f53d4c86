# SPDX-License-Identifier: Apache-2.0
"""Equal requests of one run are generated once if their responses must be equal."""

from __future__ import annotations

from tests.support.repeated_task import ROWS, RepeatedTask, answers


def test_equal_greedy_requests_are_asked_once(task: RepeatedTask) -> None:
    texts = [f"text {number % 40}" for number in range(ROWS)]
    task.input(texts)
    manifest = task.run()
    assert answers(manifest) == {f"r{number}": text for number, text in enumerate(texts)}
    assert task.asked(manifest) == 40
    assert (manifest.counts.ok, manifest.counts.duplicates) == (ROWS, ROWS - 40)


def test_equal_sampled_requests_are_each_asked(task: RepeatedTask) -> None:
    task.input(["same words"] * 10)
    assert task.asked(task.run(sampling={"temperature": 1.0})) == 10
    assert task.asked(task.run(token="again", sampling={"temperature": 0}, deduplicate=False)) == 10


def test_a_failure_is_shared_like_an_answer(task: RepeatedTask) -> None:
    task.input(["bad", "good", "bad", "bad"])
    echo = {"engine": "echo", "engine_args": {"fail_pattern": "bad"}}
    manifest = task.run(**echo, max_error_fraction=1.0)
    assert (manifest.counts.ok, manifest.counts.error, task.asked(manifest)) == (1, 3, 2)
