# SPDX-License-Identifier: Apache-2.0
"""``raybatch report``: how a run went, in the terminal, in a browser, as JSON or as a dataset card."""

from __future__ import annotations

import sys
import tempfile
import webbrowser
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import takewhile
from pathlib import Path

from airflow_provider_raybatch.cli.places import absolute, quietly_with, subfolders
from airflow_provider_raybatch.cli.terminal import Row, cell, json_line, print_rows, steady
from airflow_provider_raybatch.contract.failures import SpecError
from airflow_provider_raybatch.contract.layout import (
    JOURNAL,
    MANIFESTS,
    NEWEST_MANIFEST,
    PARTS,
    REPORT_DATA,
    REPORT_PAGE,
    report_folder,
)
from airflow_provider_raybatch.contract.manifest import (
    BatchManifest,
    JournalEntry,
    parse_entry,
    parse_manifest,
)
from airflow_provider_raybatch.contract.report import Report, parse_report
from airflow_provider_raybatch.contract.text import count_of, cut_to
from airflow_provider_raybatch.dataset import s3_credentials
from airflow_provider_raybatch.report.card import dataset_card
from airflow_provider_raybatch.report.comparison import Figure, column_changes, figures
from airflow_provider_raybatch.report.page import ending, moment, report_page, step_rows
from airflow_provider_raybatch.storage.folder import Folder, folder

STDOUT = "-"
_MOST_SAMPLES = 3
_MOST_ANSWERS = 10
_LONGEST_TEXT = 300
_MOST_RUNS = 100
"""Folders of runs, and entries of a journal, that are looked at."""


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
                    yield f"  {of}{name}: {cell(cut_to(text, _LONGEST_TEXT))}"


def find_report(place: str, aws_conn_id: str | None, run_id: str | None = None) -> Report:
    """The newest report.

    :param place: a destination, a folder with destinations of runs, or the uri of a manifest or a report.
    :param run_id: of the DAG run; by default any.
    :raises SpecError: there is none, or its file is broken.
    :raises StorageError: `place` can't be read.
    """
    return quietly_with(aws_conn_id, lambda: _find(place, aws_conn_id, run_id))


def _find(place: str, aws_conn_id: str | None, run_id: str | None) -> Report:
    credentials = s3_credentials(place, aws_conn_id)

    def opened(uri: str) -> Folder:
        return folder(uri, credentials)

    if place.endswith((".json", ".html")):
        return _of_file(place, opened)
    here = opened(place)
    found = _newest(here, run_id)
    runs = () if found is not None else reversed(subfolders(here)[-_MOST_RUNS:])
    for name in runs:
        found = found or _newest(opened(f"{here.uri}/{name}"), run_id)
    if found is None:
        run = f" of the run {run_id!r}" if run_id is not None else ""
        raise SpecError(
            f"report: there is none{run} at {place}, nor in a folder in it; give the destination of a batch "
            "inference that has run."
        )
    return found


def _of_file(place: str, opened: Callable[[str], Folder]) -> Report:
    """The report in a file, beside a page, or of a manifest."""
    above, _, name = place.rpartition("/")
    if name in (REPORT_DATA, REPORT_PAGE):
        return _read(opened(above), REPORT_DATA)
    destination, _, last = above.rpartition("/")
    if last == MANIFESTS:
        return _committed(opened(destination), f"{MANIFESTS}/{name}")
    return _committed(opened(above), name)


def _read(place: Folder, path: str) -> Report:
    return parse_report(place.read(path), f"report: {place.uri}/{path}")


def _newest(place: Folder, run_id: str | None) -> Report | None:
    """The newest report in a destination, whether its job has published a dataset or not."""
    entries = [entry for entry in _journal(place) if run_id in (None, entry.owner.run_id)]
    found: list[tuple[str, Report | str]] = [
        (one.created_at, one) for one in _written(place) if run_id in (None, one.task.run_id)
    ]
    found += _lost(place, entries)
    manifest = _newest_manifest(place, run_id, entries)
    if manifest is not None:
        found.append((_manifest(place, manifest).created_at, manifest))
    newest = max(found, key=lambda pair: pair[0])[1] if found else None
    return _committed(place, newest) if isinstance(newest, str) else newest


def _newest_manifest(place: Folder, run_id: str | None, entries: Sequence[JournalEntry]) -> str | None:
    if run_id is None:
        return None if place.head(NEWEST_MANIFEST) is None else NEWEST_MANIFEST
    for entry in entries:
        if entry.kind == "commit" and entry.published is not None:
            return entry.published.manifest
    return None


def _manifest(place: Folder, file: str) -> BatchManifest:
    return parse_manifest(place.read(file), f"manifest: {place.uri}/{file}")


def _committed(place: Folder, file: str) -> Report:
    """The report of a commit.

    :param file: the manifest, relative to `place`.
    :raises SpecError: it is not there.
    """
    named = file if file != NEWEST_MANIFEST else _manifest(place, file).manifest_uri
    commit = named.rpartition("/")[2].removesuffix(".json")
    path = f"{report_folder(commit)}/{REPORT_DATA}"
    if place.head(path) is None:
        raise SpecError(f"report: {place.uri}/{path} is missing, so the dataset has none; see its job's log.")
    return _read(place, path)


def _written(place: Folder) -> Iterator[Report]:
    """Reports of runs without a dataset, as their jobs wrote them."""
    for name in subfolders(place, PARTS)[-_MOST_RUNS:]:
        path = f"{PARTS}/{name}/{REPORT_DATA}"
        if place.head(path) is not None:
            yield _read(place, path)


def _lost(place: Folder, entries: Sequence[JournalEntry]) -> list[tuple[str, Report]]:
    """The newest run that has claimed the destination since the last commit, and whose job is gone.

    A killed driver writes no report, so this one is made of what it left.

    :returns: with the time of the claim.
    """
    claims = takewhile(lambda entry: entry.kind == "claim", entries)
    newest = {entry.owner.digest: entry for entry in reversed(list(claims))}
    for entry in sorted(newest.values(), key=lambda one: one.number, reverse=True):
        from airflow_provider_raybatch.job.output.unfinished import report_of_run

        made = report_of_run(place, entry.owner)
        if made is not None:
            return [(entry.at, made)]
    return []


def _journal(place: Folder) -> Iterator[JournalEntry]:
    """Entries that can be read, newest first."""
    paths = sorted(entry.path for entry in place.list(JOURNAL) if entry.path.endswith(".json"))
    for path in reversed(paths[-_MOST_RUNS:]):
        with suppress(SpecError):
            yield parse_entry(place.read(path), path)
