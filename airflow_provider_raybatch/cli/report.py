# SPDX-License-Identifier: Apache-2.0
"""``raybatch report``: how a run went, in the terminal, in a browser, as JSON or as a dataset card."""

from __future__ import annotations

import sys
import tempfile
import webbrowser
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path

from airflow_provider_raybatch.cli.places import absolute
from airflow_provider_raybatch.cli.reports import find_report
from airflow_provider_raybatch.cli.terminal import Row, cell, json_line, print_rows, steady
from airflow_provider_raybatch.contract.failures import SpecError
from airflow_provider_raybatch.contract.report import Report
from airflow_provider_raybatch.contract.text import count_of, cut_to
from airflow_provider_raybatch.report.card import dataset_card
from airflow_provider_raybatch.report.comparison import Figure, column_changes, figures
from airflow_provider_raybatch.report.page import ending, moment, report_page
from airflow_provider_raybatch.report.sections.quality import step_rows

STDOUT = "-"
_MOST_SAMPLES = 3
_MOST_ANSWERS = 10
_LONGEST_TEXT = 300


def show_report(options: Namespace) -> None:
    """Print, open or write a report as the options say."""
    report = find_report(absolute(options.place), options.aws_conn_id, options.run)
    if options.without_content:
        report = report.without_content()
    card = STDOUT if options.card is None else options.card
    if options.output is not None:
        _write(options.output, report_page(report))
    if card:
        _write(card, dataset_card(report))
    if options.open:
        _open(options.output, report)
    elif options.json:
        print(json_line(report.model_dump(mode="json")))
    elif options.output is None and not card:
        _print(report)


def _write(file: str, text: str) -> None:
    if file == STDOUT:
        sys.stdout.write(text)
    else:
        Path(file).write_text(text, encoding="utf-8")


def _open(file: str | None, report: Report) -> None:
    """Open the page in a browser; without a file of its own it is in a temporary folder of this user's."""
    if file is None or file == STDOUT:
        file = str(Path(tempfile.mkdtemp(prefix="raybatch-report-"), "report.html"))
        _write(file, report_page(report))
    path = Path(file).absolute()
    if not webbrowser.open(path.as_uri()):
        raise SpecError(f"open: no browser was found here; the page is at {path}.")
    print(path)


def _print(report: Report) -> None:
    task = report.task
    mapped = f"[{task.map_index}]" if task.map_index >= 0 else ""
    print(steady(f"{task.dag_id}.{task.task_id}{mapped}, run {task.run_id}, {moment(report.created_at)}"))
    print(steady(" ".join(text for text in ending(report) if text)))
    print()
    print_rows(_numbers(report), "table")
    for line in (*_steps(report), *_failures(report), *_schema(report), *_answers(report), *_samples(report)):
        print(steady(line))
    print()
    for name, uri in (("dataset", report.uri), ("failed rows", report.dead_letter_uri)):
        if uri is not None:
            print(steady(f"{name}: {uri}"))


def _numbers(report: Report) -> list[Row]:
    shown = figures(report)
    quality = [shown.rows, shown.errors, shown.error_fraction]
    money = [shown.cost, shown.cost_per_thousand, shown.gpu_hours, shown.tokens_paid]
    speed = [shown.input_tokens, shown.output_tokens, shown.seconds, shown.tokens_per_second]
    picked = [one for one in (*quality, *money, *speed) if one is shown.cost or not one.is_unknown]
    return [_row(one, report.last_run is not None) for one in picked]


def _row(figure: Figure, has_last: bool) -> Row:
    row = {"": figure.name, "this run": figure.now}
    last = {"last dataset": figure.last or "", "change": f"{figure.change} {figure.meaning}".strip()}
    return {**row, **last} if has_last else row


def _steps(report: Report) -> Iterator[str]:
    for step, *counts in (row.items() for row in step_rows(report)):
        told = ", ".join(f"{count} {head.lower()}" for head, count in counts if count != "0")
        yield f"Step {cell(step[1])}: {told}"


def _failures(report: Report) -> Iterator[str]:
    for group in report.failures:
        reason = f": {cell(group.reason)}" if group.reason else ""
        yield ""
        yield f"{count_of(group.rows, 'row')} failed at {cell(group.step)}{reason}"
        for one in group.examples:
            name = f" (id {cell(one.id)})" if one.id is not None else ""
            why = "" if one.reason == group.reason else f": {cell(one.reason)}"
            yield f"  row {one.ordinal:,}{name}{why}"


def _schema(report: Report) -> Iterator[str]:
    changed = column_changes(report.columns, report.last_run)
    if changed:
        yield ""
        yield f"The schema changed: {count_of(len(changed), 'column')}"
    for one in changed[:_MOST_ANSWERS]:
        yield f"  {cell(one.name)}: {cell(one.last or 'none')} -> {cell(one.now or 'none')}"


def _answers(report: Report) -> Iterator[str]:
    for told in report.told:
        if told.answers:
            yield ""
            yield "Answers" if told.step is None else f"Answers of {cell(told.step)}"
        for one in (told.answers or ())[:_MOST_ANSWERS]:
            yield f"  {one.rows:>12,}  {cell(one.text)}"


def _samples(report: Report) -> Iterator[str]:
    for one in report.samples[:_MOST_SAMPLES]:
        yield ""
        yield f"Row {one.ordinal:,}"
        for answer in one.answers:
            of = "" if answer.step is None else f"{cell(answer.step)}: "
            for name, text in (("prompt", answer.request), ("answer", answer.response)):
                if text is not None:
                    yield f"  {of}{name}: {cell(cut_to(_LONGEST_TEXT, text))}"
