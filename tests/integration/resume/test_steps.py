# SPDX-License-Identifier: Apache-2.0
"""Several questions about each row are asked on one engine, and each is paid for once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_raybatch.contract.failures import FailureClass
from tests.support.repeated_task import RepeatedTask, rows_of

ROWS = 60
TEXTS = [f"text {number}" for number in range(ROWS)]
DRAFT: dict[str, Any] = {"name": "draft", "prompt": "draft {row.text}"}
JUDGE: dict[str, Any] = {"name": "judge", "prompt": "judge {row.draft_response} of {row.id}"}
STEPS: dict[str, Any] = {"steps": [DRAFT, JUDGE], "id_column": "id"}
SCORE = {"type": "object", "properties": {"score": {"type": "integer"}}, "required": ["score"]}


def assert_judged(rows: list[dict[str, Any]]) -> None:
    assert [row["draft_response"] for row in rows] == [f"draft {text}" for text in TEXTS]
    assert [row["judge_response"] for row in rows] == [
        f"judge draft {text} of r{number}" for number, text in enumerate(TEXTS)
    ]


def test_a_later_step_reads_the_answers_before_it(task: RepeatedTask) -> None:
    task.input(TEXTS)
    manifest = task.run(**STEPS)
    assert_judged(rows_of(manifest))
    assert (task.asked(manifest), manifest.counts.ok) == (2 * ROWS, ROWS)
    (engine,) = task.engines_of(manifest)
    assert len(engine.asked) == 2 * ROWS
    draft, judge = manifest.steps or ()
    assert (draft.name, draft.asked, draft.ok, draft.errors) == ("draft", ROWS, ROWS, 0)
    assert (judge.name, judge.asked, judge.ok, judge.skipped) == ("judge", ROWS, ROWS, 0)
    assert (draft.output_tokens, judge.output_tokens) == (3 * ROWS, 6 * ROWS)
    assert manifest.tokens.output == 9 * ROWS
    assert manifest.tokens_paid == manifest.tokens.output + manifest.tokens.input


@pytest.mark.turn(0, 4)
def test_another_judge_is_paid_for_alone(task: RepeatedTask) -> None:
    task.input(TEXTS)
    task.run(**STEPS)
    other = {**JUDGE, "prompt": "doubt {row.draft_response}"}
    manifest = task.run(token="cleared", **{**STEPS, "steps": [DRAFT, other]})
    assert task.asked(manifest) == ROWS
    assert [row["judge_response"] for row in rows_of(manifest)] == [f"doubt draft {text}" for text in TEXTS]
    draft, judge = manifest.steps or ()
    assert (draft.resumed, judge.resumed) == (ROWS, 0)
    assert manifest.tokens_saved == draft.tokens_saved == draft.input_tokens + draft.output_tokens
    assert manifest.tokens_generated == judge.output_tokens
    assert task.asked(task.run(token="again", **STEPS)) == 0


@pytest.mark.turn(1, 5)
def test_conditions_leave_rows_out(task: RepeatedTask) -> None:
    task.input(TEXTS)
    some = {**DRAFT, "when": ["text", "in", TEXTS[:10]]}
    last = {"name": "judge", "prompt": "judge {row.text}", "when": ["draft_response", "is null"]}
    manifest = task.run(steps=[some, last])
    rows = rows_of(manifest)
    assert task.asked(manifest) == manifest.counts.ok == ROWS
    assert [row["draft_response"] for row in rows] == [f"draft {text}" for text in TEXTS[:10]] + [None] * 50
    assert [row["judge_response"] for row in rows] == [None] * 10 + [f"judge {text}" for text in TEXTS[10:]]
    assert [(step.asked, step.skipped) for step in manifest.steps or ()] == [(10, 50), (50, 10)]
    assert task.asked(task.run(token="cleared", steps=[some, last])) == 0


@pytest.mark.turn(2, 6)
def test_a_rejected_response_is_repaired(task: RepeatedTask) -> None:
    task.input(['{"score": 3}', "no JSON", '{"score": 5}'])
    draft = {"name": "draft", "prompt": "{row.text}", "response_format": "json_object"}
    repair = {"name": "repair", "prompt": "{row.draft_rejected}", "when": ["draft_rejected", "is not null"]}
    manifest = task.run(steps=[{**draft, "on_rejected": "continue"}, repair])
    good, bad, other = rows_of(manifest)
    assert (good["draft_response"], good["draft_rejected"], good["repair_response"]) == (
        '{"score": 3}',
        None,
        None,
    )
    assert bad["draft_response"] == "no JSON"
    assert "not JSON" in bad["draft_rejected"]
    assert bad["repair_response"] == bad["draft_rejected"]
    assert other["repair_response"] is None
    assert task.asked(manifest) == 4
    assert [(step.ok, step.rejected, step.skipped) for step in manifest.steps or ()] == [(2, 1, 0), (1, 0, 2)]


@pytest.mark.turn(3, 7)
def test_typed_columns_of_a_step_are_read_by_the_next(task: RepeatedTask) -> None:
    task.input(TEXTS[:5])
    draft = {**DRAFT, "response_format": SCORE}
    judge = {"name": "judge", "prompt": "score {row.draft_score}"}
    rows = rows_of(task.run(steps=[draft, judge]))
    assert [row["judge_response"] for row in rows] == [f"score {row['draft_score']}" for row in rows]
    assert all(isinstance(row["draft_score"], int) for row in rows)


@pytest.mark.parametrize(
    "step", [pytest.param(0, marks=pytest.mark.turn(2)), pytest.param(1, marks=pytest.mark.turn(6))]
)
def test_a_failed_row_says_which_step(task: RepeatedTask, step: int) -> None:
    task.input(TEXTS)
    pattern = "draft text 7" if step == 0 else "judge draft text 7 "
    echo = {"engine_args": {"fail_pattern": pattern}}
    manifest = task.run(**STEPS, **echo, max_error_fraction=0.5)
    (file,) = Path(manifest.dead_letter_uri or "").iterdir()
    (letter,) = map(json.loads, file.read_text().splitlines())
    assert (letter["id"], letter["step"]) == ("r7", ["draft.engine", "judge.engine"][step])
    assert letter["row"].get("draft_response") == [None, "draft text 7"][step]
    assert manifest.counts.ok == ROWS - 1
    assert [one.errors for one in manifest.steps or ()] == [1 - step, step]
    assert [one.skipped for one in manifest.steps or ()] == [0, 0]
    mended = task.run(token="cleared", **STEPS)
    assert task.asked(mended) == 2 - step
    assert_judged(rows_of(mended))


@pytest.mark.parametrize(
    "step", [pytest.param(0, marks=pytest.mark.turn(4)), pytest.param(1, marks=pytest.mark.turn(0))]
)
def test_a_row_that_kills_in_a_step_is_found(task: RepeatedTask, step: int) -> None:
    task.input(TEXTS)
    pattern = ["draft text 7", "judge draft text 7 "][step]
    echo = {"engine_args": {"kill_pattern": pattern, "max_num_seqs": 8}, "rows_in_flight": 8}
    manifest = task.run(**STEPS, **echo, max_error_fraction=0.5, max_restarts=9, flush_interval=0.2)
    (file,) = Path(manifest.dead_letter_uri or "").iterdir()
    (letter,) = map(json.loads, file.read_text().splitlines())
    assert (letter["id"], letter["step"]) == ("r7", ["draft.engine", "judge.engine"][step])
    assert manifest.counts.ok == ROWS - 1


@pytest.mark.turn(1, 5)
def test_a_stopped_job_goes_on_where_its_rows_stood(task: RepeatedTask) -> None:
    task.input(TEXTS)
    slow = {"engine_args": {"seconds_per_token": 0.1, "max_num_seqs": 4}, "rows_in_flight": 4}
    task.stopped("judge draft text 5", **STEPS, **slow, flush_interval=0.3)
    first = task.asked_in_all()
    assert 0 < first < 2 * ROWS
    manifest = task.run(**STEPS)
    assert_judged(rows_of(manifest))
    assert task.asked(manifest) < 2 * ROWS
    assert task.asked_in_all() <= 2 * ROWS + 8  # at most what was in the engine is asked again
    assert manifest.savings is not None
    assert (manifest.tokens_saved, manifest.savings.resumed > 0) == (0, True)  # the run has paid for all
    assert 0 < (manifest.tokens_generated or 0) < manifest.tokens.output


@pytest.mark.turn(3, 7)
def test_steps_of_other_runs_are_reused(task: RepeatedTask) -> None:
    task.input(TEXTS)
    reuse = {"reuse": str(task.folder / "store")}
    repair = {"name": "repair", "prompt": "{row.draft_response}", "when": ["draft_response", "==", "never"]}
    steps = {**STEPS, "steps": [DRAFT, repair, JUDGE]}
    assert task.asked(task.run(**steps, **reuse)) == 2 * ROWS
    again = task.run(run_id="r2", **steps, **reuse)
    assert task.asked(again) == 0
    assert [step.reused for step in again.steps or ()] == [ROWS, 0, ROWS]
    assert again.savings is not None
    assert again.tokens_saved == again.savings.reused == again.tokens.input + again.tokens.output
    assert_judged(rows_of(again))
    other = {**JUDGE, "prompt": "doubt {row.draft_response}"}
    assert task.asked(task.run(run_id="r3", **{**steps, "steps": [DRAFT, repair, other]}, **reuse)) == ROWS


@pytest.mark.turn(0, 4)
def test_a_failed_job_keeps_the_answers_of_its_steps(task: RepeatedTask) -> None:
    task.input(TEXTS)
    echo = {"engine_args": {"fail_pattern": "judge"}}
    said = task.refused(FailureClass.TOO_MANY_ERRORS, **STEPS, **echo, max_error_fraction=0.1)
    assert f"answers of earlier steps are kept, too: draft {ROWS}" in said
    manifest = task.run(**STEPS)
    assert_judged(rows_of(manifest))
    assert task.asked(manifest) == ROWS
