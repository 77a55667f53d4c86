# SPDX-License-Identifier: Apache-2.0
"""A manifest and a report are read as they were written, and without what rows hold."""

from __future__ import annotations

import json
from typing import Any

import pytest

from airflow_provider_raybatch.contract.base import parse
from airflow_provider_raybatch.contract.failures import SpecError, without_values
from airflow_provider_raybatch.contract.manifest import BatchManifest
from airflow_provider_raybatch.contract.report import FailureGroup, Report
from airflow_provider_raybatch.contract.run_numbers import LastRun
from tests.support import reports
from tests.support.approved import AssertSentences
from tests.support.specs import TASK


def document(**fields: Any) -> dict[str, Any]:
    return {
        "uri": "/out/data/1",
        "manifest_uri": "/out/manifests/1.json",
        "format": "parquet",
        "files": [{"path": "part-00000.parquet", "rows": 3, "bytes": 10}],
        "schema": [{"name": "id", "type": "int64"}],
        "counts": {"input": 4, "ok": 3, "error": 1},
        "owner": TASK,
        "run_token": "t",
        "submission_id": "raybatch-x-0",
        "created_at": "2026-01-01T00:00:00+00:00",
        **fields,
    }


def test_document_has_its_schema_and_reads_back() -> None:
    manifest = parse(BatchManifest, document())
    written = manifest.model_dump_json(by_alias=True)
    assert json.loads(written)["schema"] == [{"name": "id", "type": "int64"}]
    assert parse(BatchManifest, written) == manifest


def test_other_documents_are_refused(assert_sentences: AssertSentences) -> None:
    assert_sentences(lambda **fields: parse(BatchManifest, document(**fields)), SpecError)


def test_steps_are_in_the_summary_and_older_manifests_have_none() -> None:
    assert parse(BatchManifest, document()).steps is None
    found = parse(BatchManifest, document(steps=[{"name": "draft", "asked": 4, "ok": 4}])).summary()
    assert found.steps is not None
    assert [(one.name, one.asked, one.skipped) for one in found.steps] == [("draft", 4, 0)]


def test_summary_repeats_the_manifest() -> None:
    counts = {"input": 4, "ok": 3, "error": 1, "resumed": 2, "reused": 1}
    manifest = parse(
        BatchManifest, document(dead_letter_uri="/out/dead_letter/1", tokens={"output": 7}, counts=counts)
    )
    summary = manifest.summary()
    assert (summary.rows, summary.errors, summary.tokens.output) == (3, 1, 7)
    assert (summary.resumed, summary.reused, summary.duplicates) == (2, 1, 0)
    assert (summary.uri, summary.dead_letter_uri) == ("/out/data/1", "/out/dead_letter/1")


def test_summary_stays_small_beside_a_wide_dataset() -> None:
    """It travels as one event and one XCom, and the dataset before may have thousands of columns."""
    wide = {f"{number:032x}": "string" for number in range(3000)}
    manifest = parse(
        BatchManifest, document(last_run={"rows": 1, "errors": 0, "seconds": 2.5, "columns": wide})
    )
    assert manifest.summary().last_run == LastRun(rows=1, errors=0, seconds=2.5)
    assert len(manifest.summary().model_dump_json()) < 2000


def test_lines_that_were_not_asked_are_no_main_failure() -> None:
    steps = {"cancelled": 5, "expired": 1, "engine": 2}
    counts = {"input": 9, "ok": 1, "error": 8, "errors_by_step": steps}
    summary = parse(BatchManifest, document(counts=counts)).summary()
    assert (summary.errors, summary.unanswered, summary.main_failure) == (8, 6, "engine")
    only = {"input": 6, "ok": 1, "error": 5, "errors_by_step": {"cancelled": 5}}
    assert parse(BatchManifest, document(counts=only)).summary().main_failure is None


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("it's not JSON (no value): 'My card is 4711'", "it's not JSON (no value): '...'"),
        ('not a choice: "I can\'t say", or cut', "not a choice: '...', or cut"),
        ("not a choice: 'she said \\'no\\' 3 times'; the user's", "not a choice: '...'; the user's"),
        ("not JSON: \"I can't say what the...", "not JSON: '...'"),
        ("the prompt has 5,000 tokens, and the model's context 4,096", None),
    ],
)
def test_what_a_reason_quotes_is_left_out(text: str, shown: str | None) -> None:
    assert without_values(text) == (text if shown is None else shown)


def test_nothing_of_rows_is_left_without_content() -> None:
    secret = "My card is 4711"
    failure = f"max_errors: 3 rows failed: 3 in step 'parse' (row 5: the response is not JSON: {secret!r})."
    group = FailureGroup(step="parse", rows=3, reason=f"the response is not JSON: {secret!r}")
    report = reports.changed(failures=[group], failure=failure, state="failed").without_content()
    assert "4711" not in report.model_dump_json()
    assert report.failure == (
        "max_errors: 3 rows failed: 3 in step 'parse' (row 5: the response is not JSON: '...')."
    )
    assert report.without_content() == report


def test_an_argument_stays_named() -> None:
    report: Report = reports.refused()
    assert report.without_content().failure == report.failure
