# SPDX-License-Identifier: Apache-2.0
"""A report without content says why rows failed, and not what they hold."""

from __future__ import annotations

import pytest

from airflow_provider_raybatch.contract.failures import without_values
from airflow_provider_raybatch.contract.report import FailureGroup, Report
from tests.support import reports


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
