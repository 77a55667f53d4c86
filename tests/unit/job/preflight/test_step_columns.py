# SPDX-License-Identifier: Apache-2.0
"""Columns of steps that the source lacks or has already: the sentence names the step and what it can do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_raybatch.contract.failures import PreflightError, SpecError
from airflow_provider_raybatch.job.preflight.input_check import look_at_source
from airflow_provider_raybatch.job.request.render import render_all
from airflow_provider_raybatch.job.row import RowFailure
from airflow_provider_raybatch.job.tasks.registry import task_of
from tests.support.specs import spec

SCORE = {"type": "object", "properties": {"score": {"type": "integer"}}}
RESPONSE = {"type": "object", "properties": {"response": {"type": "string"}}}
DRAFT = {"name": "draft", "prompt": "{row.text}", "response_format": SCORE}
JUDGE = {"name": "judge", "prompt": "{row.draft_response}"}
OF_STEPS = "the source with the columns of earlier steps has no column"


def look(folder: Path, row: dict[str, Any], *steps: dict[str, Any], **fields: Any) -> None:
    path = folder / "in.jsonl"
    path.write_text(json.dumps({"text": "a", **row}) + "\n")
    look_at_source(spec(source=[str(path)], steps=list(steps or (DRAFT, JUDGE)), **fields), None)


@pytest.mark.parametrize(
    ("row", "steps", "fields", "sentence"),
    [
        (
            {"draft_response": "x"},
            (),
            {},
            "steps: draft: the source has a column 'draft_response' already, which is also an output column; "
            "rename the step.",
        ),
        (
            {"Judge_Response": "x"},
            (),
            {},
            "steps: judge: the source has a column 'Judge_Response' already, which is also an output column, "
            "since many warehouses ignore case; rename the step.",
        ),
        (
            {},
            (DRAFT, {**JUDGE, "prompt": "{row.draft_scor}"}),
            {},
            f"steps: judge: prompt: {OF_STEPS} 'draft_scor'; did you mean 'draft_score' (its columns: ",
        ),
        (
            {},
            (DRAFT, {**JUDGE, "when": ("Draft_Score", ">", 3)}),
            {},
            f"steps: judge: when: {OF_STEPS} 'Draft_Score'; did you mean 'draft_score' (its columns: ",
        ),
        ({}, (), {"id_column": "judge_response"}, "id_column: the source has no column 'judge_response' ("),
        (
            {},
            ({**DRAFT, "response_format": RESPONSE},),
            {},
            "steps: draft: response_format: property 'response' would be the column 'draft_response', which "
            "the step has of its own; rename the property.",
        ),
        (
            {"draft_score": 1},
            (),
            {"id_column": "draft_score"},
            "steps: draft: response_format: property 'score' would be the column 'draft_score', which the "
            "source has already; rename the step.",
        ),
    ],
    ids=["column", "case", "typed", "condition", "id", "property", "id is typed"],
)
def test_each_mistake_has_a_remedy_of_steps(
    tmp_path: Path, row: dict[str, Any], steps: Any, fields: dict[str, Any], sentence: str
) -> None:
    with pytest.raises((PreflightError, SpecError)) as refused:
        look(tmp_path, row, *steps, **fields)
    assert str(refused.value).startswith(sentence)


def test_a_late_row_with_a_steps_column_fails_with_its_remedy() -> None:
    first, _ = spec(steps=[DRAFT, JUDGE]).step_specs()
    (failure,) = render_all(task_of(first).renderer(), [{"text": "a", "draft_score": 1}])
    assert isinstance(failure, RowFailure)
    assert failure.reason == (
        "the row has a column 'draft_score', which is also an output column; rename the step 'draft'"
    )
