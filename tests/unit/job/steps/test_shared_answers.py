# SPDX-License-Identifier: Apache-2.0
"""Jobs in which rows ask the same: each distinct request is asked once."""

from __future__ import annotations

import json
from typing import Any

import pytest

from airflow_provider_raybatch.contract.failures import FailureClass, RaybatchError
from airflow_provider_raybatch.contract.manifest import BatchManifest
from tests.support.repeated_task import RepeatedTask, letters_of, rows_of
from tests.support.whole_job import ended_while_writing

FEW: list[dict[str, Any]] = [
    {"name": "title", "prompt": "title {row.text}", "sampling": {"temperature": 0}},
    {"name": "judge", "prompt": "judge {row.title_response}", "sampling": {"temperature": 0}},
]
CITY: list[dict[str, Any]] = [FEW[0], {**FEW[1], "prompt": "of {row.city}"}]
ROWS = 20
REPEATED = [f"text {number % 5}" for number in range(ROWS)]
DISTINCT = [f"text {number}" for number in range(ROWS)]


def judged(manifest: BatchManifest) -> list[str]:
    return [row["judge_response"] for row in rows_of(manifest)]


def cities(task: RepeatedTask) -> list[str]:
    rows = [{"text": text, "city": f"city {number % 2}"} for number, text in enumerate(DISTINCT)]
    source = task.folder / "cities.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return [str(source)]


def test_equal_rows_ask_each_step_once(task: RepeatedTask) -> None:
    task.input(REPEATED)
    manifest = task.run(steps=FEW, batch_size=4, preserve_order=True)
    assert judged(manifest) == [f"judge title {text}" for text in REPEATED]
    assert task.asked(manifest) == 10
    assert (manifest.counts.duplicates, manifest.tokens_lost) == (15, 0)
    assert [(one.asked, one.ok, one.duplicates) for one in manifest.steps or ()] == [(20, 20, 15)] * 2
    title, _ = manifest.steps or ()
    assert title.tokens_saved == 3 * (title.input_tokens + title.output_tokens) // 4 > 0


def test_rows_left_out_before_share_samples(task: RepeatedTask) -> None:
    first, judge = CITY
    steps = [{**first, "when": ["text", "==", "none"]}, {**judge, "sampling": {"temperature": 1}}]
    assert task.asked(task.run(steps=steps, source=cities(task))) == 2


def test_deduplicate_false_asks_each_row(task: RepeatedTask) -> None:
    task.input(REPEATED)
    assert task.asked(task.run(steps=FEW, deduplicate=False)) == 40


@pytest.mark.parametrize(("first", "asked"), [(1.0, 40), (0.0, 10)], ids=["sampled", "greedy"])
def test_sampled_requests_are_numbered_by_those_before(task: RepeatedTask, first: float, asked: int) -> None:
    """Equal rows get samples of their own from the step on in which they are asked apart, on each night."""
    task.input(REPEATED)
    store = {"reuse": str(task.folder / "store")}
    steps = [
        {**step, "sampling": {"temperature": temperature}}
        for step, temperature in zip(FEW, (first, 1.0), strict=True)
    ]
    assert task.asked(task.run(steps=steps, **store)) == asked
    task.input(REPEATED[::-1])
    again = task.run(token="night", run_id="r2", steps=steps, **store)
    assert task.asked(again) == 0
    vote = {**steps[1], "name": "vote"}  # asks the same again, and gets another sample
    assert task.asked(task.run(token="vote", run_id="r3", steps=[*steps, vote], **store)) == asked // 2


@pytest.mark.parametrize("pattern", ["fail_pattern", "kill_pattern"])
def test_equal_rows_meet_at_one_failure(task: RepeatedTask, pattern: str) -> None:
    task.input(REPEATED)
    args = {pattern: "judge title text 3", "max_num_seqs": 4}
    manifest = task.run(steps=FEW, engine_args=args, max_errors=4)
    letters = letters_of(manifest)
    assert [letter["step"] for letter in letters] == ["judge.engine"] * 4
    assert len({letter["reason"] for letter in letters}) == 1
    assert (manifest.counts.ok, manifest.counts.error) == (16, 4)


@pytest.mark.parametrize("same_place", [True, False], ids=["one destination", "response store"])
def test_the_next_night_asks_only_what_is_new(task: RepeatedTask, same_place: bool) -> None:
    """Its first step is another one; what it answers is the same, so the second step's requests are."""
    task.input(DISTINCT)
    store = {} if same_place else {"reuse": str(task.folder / "store")}
    first, judge = FEW
    assert task.asked(task.run(steps=FEW, **store)) == 40
    night = {"token": "night", "run_id": "r1" if same_place else "r2"}
    changed = {**first, "sampling": {"temperature": 0, "max_tokens": 50}}
    manifest = task.run(**night, steps=[changed, judge], **store)
    assert sorted(judged(manifest)) == sorted(f"judge title {text}" for text in DISTINCT)
    assert task.asked(manifest) == 20
    title, told = manifest.steps or ()
    found = (20, 0) if same_place else (0, 20)
    assert (title.resumed + title.reused, told.resumed, told.reused) == (0, *found)
    assert (manifest.counts.resumed, manifest.counts.reused) == found


def test_a_failure_that_rows_share_is_paid_once(task: RepeatedTask) -> None:
    task.input(REPEATED)
    steps = [FEW[0], {**FEW[1], "response_format": "json_object"}]
    each, once = (
        task.run(run_id=f"r{share}", steps=steps, deduplicate=bool(share), max_errors=ROWS)
        for share in range(2)
    )
    assert once.counts.errors_by_step == each.counts.errors_by_step == {"judge.parse": ROWS}
    assert 4 * (once.tokens_paid or 0) == each.tokens_paid


@pytest.mark.parametrize("dies", ["driver", "replica"])
@pytest.mark.parametrize(
    ("fields", "after", "step"),
    [({"steps": FEW}, 0, 0), ({"steps": FEW}, 1, 0), ({"steps": FEW}, 0, 1), ({}, 0, 0)],
)
def test_equal_rows_are_asked_once_though_a_process_ends(
    task: RepeatedTask, dies: str, fields: dict[str, Any], after: int, step: int
) -> None:
    """But for what was in the engine, or answered and not yet written."""
    task.input(REPEATED)
    slow = {"rows_in_flight": 2, "flush_interval": 0.01, "batch_size": 2}
    args = {"engine_args": {"seconds_per_token": 0.002, "max_num_seqs": 2}}
    error = RaybatchError("the disk is away.", FailureClass.CANCELLED) if dies == "driver" else None
    with ended_while_writing(after, error, step):
        if error is None:
            manifest = task.run(**fields, **slow, **args)
        else:
            task.refused(FailureClass.CANCELLED, **fields, **slow, **args)
            manifest = task.run(**fields, **slow, **args)
    if fields:
        assert sorted(judged(manifest)) == sorted(f"judge title {text}" for text in REPEATED)
    asked = 10 if fields else 5
    assert manifest.counts.ok == ROWS
    assert len(set(task.all_asked())) == asked
    assert len(task.all_asked()) <= asked + 3 * slow["rows_in_flight"]
    assert (manifest.tokens_lost > 0) == (dies == "replica")  # a driver notes each half minute what it knows


@pytest.mark.parametrize("fields", [{"steps": FEW[:1]}, {}], ids=["one step", "one question"])
def test_equal_rows_find_answers_of_earlier_attempts(task: RepeatedTask, fields: dict[str, Any]) -> None:
    """Some of the equal rows have their answer in a part of the attempt that died, and others do not."""
    task.input([*DISTINCT, *DISTINCT])
    args = {"engine_args": {"seconds_per_token": 0.005, "max_num_seqs": 2}}
    slow = {"rows_in_flight": 2, "flush_interval": 0.01, "batch_size": 2, **args}
    with ended_while_writing(1, RaybatchError("the disk is away.", FailureClass.CANCELLED)):
        task.refused(FailureClass.CANCELLED, **fields, **slow)
    died, kept = len(task.all_asked()), task.kept()
    assert 0 < kept < ROWS
    task.run(**fields)
    assert len(task.all_asked()) - died == ROWS - kept


@pytest.mark.parametrize("fields", [{"steps": FEW}, {}], ids=["steps", "one question"])
def test_what_is_committed_is_stored_whatever_ends_the_job(
    task: RepeatedTask, fields: dict[str, Any]
) -> None:
    task.input(DISTINCT)
    store = {"reuse": str(task.folder / "store")}

    def dies() -> None:
        raise SystemExit("killed when the manifest is there")

    with pytest.raises(SystemExit):
        task.run(on_commit=dies, **fields, **store)
    assert task.asked(task.run(token="night", run_id="r2", **fields, **store)) == 0
