# SPDX-License-Identifier: Apache-2.0
"""Is it good: rows, what each step did, failed rows with reasons, and examples of them."""

from __future__ import annotations

from collections.abc import Sequence
from xml.etree.ElementTree import Element

from airflow_provider_raybatch.contract.report import FailedExample, FailureGroup, Report
from airflow_provider_raybatch.contract.text import count_of
from airflow_provider_raybatch.report import words
from airflow_provider_raybatch.report.comparison import ColumnChange, Figure, Figures, column_changes, figure
from airflow_provider_raybatch.report.elements import (
    Content,
    folded,
    node,
    number,
    section,
    side_by_side,
    table,
    words_of,
)
from airflow_provider_raybatch.report.plots import bar
from airflow_provider_raybatch.report.sections.figures import figure_table
from airflow_provider_raybatch.report.sections.rows import asked, row_article

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


_MOST_CHANGES, _MOST_UNFOLDED = 50, 12
STEPS = {
    "read": "could not be read",
    "template": "could not be put into the prompt",
    "media": "has an image that could not be used",
    "tokenize": "could not be tokenised",
    "engine": "the engine refused or failed",
    "parse": "the answer is not the JSON that was asked for",
    "length": "the answer was cut off",
    "postprocess": "the user's function failed",
    "cancelled": "not asked before the batch was cancelled",
    "expired": "not asked before the completion window was over",
    "limit_reached": "not asked before the batch had used up a limit",
}
"""What a failed step means."""


def quality(report: Report, shown: Figures) -> Element | None:
    """The section, ``None`` where no row was counted."""
    if report.rows is None and report.errors is None and not report.failures:
        return None
    tables = side_by_side(_table(report, shown), _steps(report))
    groups = [_group(group) for group in report.failures]
    whole = [_part_failed(report), tables, steps(report), groups, _schema(report)]
    return section("quality", "Is it good?", whole)


def _part_failed(report: Report) -> Element | None:
    good, bad = report.rows or 0, report.errors or 0
    left = max(0, (report.total or 0) - good - bad)
    if not good + bad + left:
        return node("p", "The input has no rows.") if report.total == 0 else None
    said = [f"{count_of(good, 'good row')}", f"{words.count(bad)} failed"]
    said += [f"{words.count(left)} not done"] if left else []
    whole = bar([(good, "good"), (bad, "bad"), (left, "none")], good + bad + left)
    return node("div", whole, node("p", ", ".join(said), class_="dim"), class_="whole")


def _table(report: Report, shown: Figures) -> Element:
    picked: list[Figure] = [shown.rows, shown.errors, shown.error_fraction]
    if report.total is not None:
        picked.append(Figure("Rows of the input", words.count(report.total)))
    if report.counts is not None and report.counts.chunks is not None:
        picked.append(Figure("Chunks made of them", words.count(report.counts.chunks)))
    if report.counts is not None and report.counts.blank:
        picked.append(Figure("Rows with blank text", words.count(report.counts.blank)))
    taken = (shown.resumed, shown.reused, shown.duplicates)
    picked += [one for one in taken if {one.now, one.last} - {"0", words.UNKNOWN, None}]
    return figure_table("Rows", picked)


def _steps(report: Report) -> Element | None:
    last = report.last_run
    before = last.errors_by_step if last is not None else {}
    now = {group.step: group.rows for group in report.failures}
    has_last = last is not None and bool(before or not last.errors)
    names = {**now, **before} if report.state == "committed" else now
    picked = [
        figure(step, now.get(step, 0), before.get(step, 0), wanted="less", has_last=has_last)
        for step in names
    ]
    return figure_table("Failed rows by step", picked) if picked else None


def _group(group: FailureGroup) -> list[Content]:
    known = STEPS.get(group.step.rpartition(".")[2])  # of several questions, after the name of one
    meaning = f" ({known})" if known else ""
    title = node("h3", f"{count_of(group.rows, 'row')} failed: ", words_of(group.step), meaning)
    reason = node("p", "Most frequent reason: ", words_of(group.reason, 1000)) if group.reason else None
    number = count_of(len(group.examples), "example")
    return [title, reason, folded(number, _examples(group.examples)) if group.examples else None]


def _examples(examples: Sequence[FailedExample]) -> list[Element]:
    return [
        row_article(
            one.ordinal,
            one.id,
            node("p", words_of(one.reason, 1000)),
            asked(one.request, one.response),
            row=one.row,
        )
        for one in examples
    ]


def _schema(report: Report) -> list[Content] | Element | None:
    changed = column_changes(report.columns, report.last_run)
    if not changed:
        return None
    added, removed = sum(one.last is None for one in changed), sum(one.now is None for one in changed)
    counts = ((added, "added"), (removed, "removed"), (len(changed) - added - removed, "of another type"))
    said = ", ".join(f"{count_of(count, 'column')} {word}" for count, word in counts if count)
    rows = [(words_of(one.name), *_types(one)) for one in changed[:_MOST_CHANGES]]
    left = len(changed) - len(rows)
    whole = table(f"The schema changed: {said}", ("Column", "Change", "This run", "Last"), rows)
    more = node("p", f"And {count_of(left, 'more column')}.") if left else None
    return (
        [whole, more] if len(rows) <= _MOST_UNFOLDED else folded(f"The schema changed: {said}", whole, more)
    )


def _types(one: ColumnChange) -> tuple[Content, Content, Content]:
    said = "added" if one.last is None else "removed" if one.now is None else "other type"
    return said, words_of(one.now or "none"), words_of(one.last or "none")
