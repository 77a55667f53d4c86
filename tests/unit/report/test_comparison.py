# SPDX-License-Identifier: Apache-2.0
"""Numbers of a run beside those of the last dataset."""

from __future__ import annotations

import math

import pytest

from airflow_provider_raybatch.contract.run_numbers import LastRun
from airflow_provider_raybatch.report import words
from airflow_provider_raybatch.report.comparison import Figure, column_changes, figure, figures
from tests.support import reports


@pytest.mark.parametrize(
    ("now", "last", "change", "meaning"),
    [
        (120, 100, "+20 %", "worse"),
        (80, 100, "\u221220 %", "better"),
        (101, 100, "+1 %", ""),
        (100, 100, "same", ""),
        (100_001, 100_000, "under 0.1 %", ""),
        (30, 0, "+30", "worse"),
        (0, 30, "\u2212100 %", "better"),
        (1250, 100, "12.5x", "worse"),
        (None, 100, "", ""),
        (100, None, "", ""),
        (math.nan, 100, "", ""),
    ],
)
def test_changes(now: float | None, last: float | None, change: str, meaning: str) -> None:
    found = figure("Failed rows", now, last, wanted="less")
    assert (found.change, found.meaning) == (change, meaning)


def test_without_a_last_dataset_nothing_is_compared() -> None:
    assert figure("Rows", 7, None, has_last=False) == Figure("Rows", "7")
    found = figures(reports.changed(last_run=None))
    assert (found.cost.last, found.error_fraction.change) == (None, "")


def test_other_money_is_not_compared() -> None:
    last = reports.LAST.model_copy(update={"currency": "EUR"})
    found = figures(reports.changed(last_run=last)).cost
    assert (found.now, found.last, found.change) == ("1.82 USD", "1.67 EUR", "")


def test_a_job_without_a_dataset_is_neither_better_nor_worse() -> None:
    found = figures(reports.killed())
    assert {found.rows.meaning, found.errors.meaning, found.seconds.meaning, found.gpu_hours.meaning} == {""}
    assert found.error_fraction.meaning == ""
    assert found.input_tokens.now == words.UNKNOWN


def test_an_error_rate_changes_by_points() -> None:
    found = figures(reports.good()).error_fraction
    assert (found.now, found.last, found.change, found.meaning) == ("1.5 %", "0.1 %", "+1.4 points", "worse")


def test_columns_of_both_datasets() -> None:
    last = LastRun(rows=1, errors=0, columns={"a": "int64", "b": "string", "gone": "string"})
    found = [
        (one.name, one.now, one.last)
        for one in column_changes({"a": "int64", "b": "double", "new": "bool"}, last)
    ]
    assert found == [("b", "double", "string"), ("new", "bool", None), ("gone", None, "string")]
    assert column_changes({"a": "int64"}, LastRun(rows=1, errors=0)) == []
    assert column_changes({}, last) == []


@pytest.mark.parametrize(
    ("said", "text"),
    [
        (words.money(0.0, "USD"), "0.00 USD"),
        (words.money(0.0123456, "USD"), "0.012 USD"),
        (words.money(1234.567, None), "1,234.57"),
        (words.money(1e-20, "EUR"), "0.000000000000 EUR"),
        (words.money(None, "EUR"), "unknown"),
        (words.money(math.inf, "EUR"), "unknown"),
        (words.percent(0.0), "0 %"),
        (words.percent(0.00001), "under 0.1 %"),
        (words.percent(0.99999), "over 99.9 %"),
        (words.percent(1.0), "100 %"),
        (words.seconds(0.04), "0.0 s"),
        (words.seconds(3.25), "3.2 s"),
        (words.seconds(3725), "1 h 2 min"),
        (words.hours(12), "12 s"),
        (words.hours(0), "0 h"),
        (words.hours(180), "0.050 h"),
        (words.hours(3600 * 1234.5), "1,234.50 h"),
        (words.rate(0.00123), "0.00123"),
        (words.rate(1234.4), "1,234"),
        (words.count(None), "unknown"),
    ],
)
def test_words_of_numbers(said: str, text: str) -> None:
    assert said == text
