# SPDX-License-Identifier: Apache-2.0
"""Columns of steps that the source lacks or has already: the sentence names the step and what it can do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from airflow_provider_raybatch.contract.failures import PreflightError, SpecError
from airflow_provider_raybatch.job.preflight.input_check import look_at_source
from airflow_provider_raybatch.job.request.render import render_all
from airflow_provider_raybatch.job.row import RowFailure
from airflow_provider_raybatch.job.tasks.registry import task_of
from tests.support.approved import AssertSentences
from tests.support.specs import spec

SCORE = {"type": "object", "properties": {"score": {"type": "integer"}}}
RESPONSE = {"type": "object", "properties": {"response": {"type": "string"}}}
DRAFT = {"name": "draft", "prompt": "{row.text}", "response_format": SCORE}
JUDGE = {"name": "judge", "prompt": "{row.draft_response}"}


def look(folder: Path, row: dict[str, Any], *steps: dict[str, Any], **fields: Any) -> None:
    path = folder / "in.jsonl"
    path.write_text(json.dumps({"text": "a", **row}) + "\n")
    look_at_source(spec(source=[str(path)], steps=list(steps or (DRAFT, JUDGE)), **fields), None)


def test_each_mistake_has_a_remedy_of_steps(tmp_path: Path, assert_sentences: AssertSentences) -> None:
    assert_sentences(
        lambda row, steps, fields: look(tmp_path, row, *steps, **fields), (PreflightError, SpecError)
    )


def test_a_late_row_with_a_steps_column_fails_with_its_remedy() -> None:
    first, _ = spec(steps=[DRAFT, JUDGE]).step_specs()
    (failure,) = render_all(task_of(first).renderer(), [{"text": "a", "draft_score": 1}])
    assert isinstance(failure, RowFailure)
    assert failure.reason == (
        "the row has a column 'draft_score', which is also an output column; rename the step 'draft'"
    )
