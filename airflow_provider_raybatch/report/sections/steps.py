# SPDX-License-Identifier: Apache-2.0
"""What each step did, where several questions were asked about each row."""

from __future__ import annotations

from airflow_provider_raybatch.contract.report import Report
from airflow_provider_raybatch.report import words
from airflow_provider_raybatch.report.elements import Content, node, number, table, words_of

_COLUMNS = {
    "asked": "Asked",
    "skipped": "Skipped",
    "ok": "Good",
    "rejected": "Rejected",
    "errors": "Failed",
    "resumed": "Resumed",
    "reused": "Reused",
    "input_tokens": "Prompt tokens",
    "cached_tokens": "Of them cached",
    "output_tokens": "Generated tokens",
    "tokens_saved": "Tokens saved",
}
_ALWAYS = ("asked", "skipped", "ok", "rejected", "errors", "input_tokens", "output_tokens")
_MEANING = (
    "Skipped rows did not fulfil the conditions of the step. Rejected responses are not what was asked for, "
    "and their rows went on. Rows that failed in an earlier step are not counted."
)


def steps(report: Report) -> list[Content] | None:
    """The table; ``None`` where one question was asked."""
    if not report.steps:
        return None
    rows = step_rows(report)
    cells = [[words_of(step), *map(number, counts)] for step, *counts in (row.values() for row in rows)]
    return [table("Steps", rows[0], cells), node("p", _MEANING, class_="dim")]


def step_rows(report: Report) -> list[dict[str, str]]:
    """What each step did, by the heads of the table's columns."""
    found = report.steps or []
    names = [name for name in _COLUMNS if name in _ALWAYS or any(getattr(one, name) for one in found)]
    return [
        {"Step": one.name, **{_COLUMNS[name]: words.count(getattr(one, name)) for name in names}}
        for one in found
    ]
