# SPDX-License-Identifier: Apache-2.0
"""A dataset of an older version is shown by its manifest."""

from __future__ import annotations

from airflow_provider_raybatch.contract.manifest import parse_manifest
from airflow_provider_raybatch.report.from_manifest import report_from_manifest
from airflow_provider_raybatch.report.page import report_page
from tests.support.report_files import key, manifest


def test_numbers_and_reasons_of_a_manifest() -> None:
    found = parse_manifest(
        manifest(
            key(),
            tokens={"input": 40, "output": 7},
            cost=2.5,
            currency="EUR",
            timing={"total_seconds": 9.0},
            reasons_by_step={"engine": "the prompt is empty"},
        ),
        "manifest.json",
    )
    made = report_from_manifest(found)
    assert (made.rows, made.errors, made.total, made.seconds, made.cost) == (3, 1, 4, 9.0, 2.5)
    assert [(one.step, one.rows, one.reason) for one in made.failures] == [
        ("engine", 1, "the prompt is empty")
    ]
    assert made.columns == {"response": "string"}
    assert (made.state, made.task, made.content, made.samples) == ("committed", key(), False, [])
    assert "2.50 EUR" in report_page(made)


def test_page_of_a_batch_that_ended_early_says_so() -> None:
    counts = {"input": 9, "ok": 1, "error": 8, "errors_by_step": {"cancelled": 6, "engine": 2}}
    page = report_page(report_from_manifest(parse_manifest(manifest(key(), counts=counts), "manifest.json")))
    assert "The batch ended early: 1 good row, 2 failed, 6 not asked before." in page
    assert "not asked before the batch was cancelled" in page


def test_steps_of_a_manifest_are_shown() -> None:
    steps = [{"name": "draft", "asked": 4, "ok": 2, "rejected": 1, "errors": 1}]
    made = report_from_manifest(parse_manifest(manifest(key(), steps=steps), "manifest.json"))
    assert made.steps is not None
    assert [(one.name, one.rejected) for one in made.steps] == [("draft", 1)]
