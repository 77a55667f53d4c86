# SPDX-License-Identifier: Apache-2.0
"""A report as one page, which opens from a folder or a bucket; it loads nothing and runs nothing."""

from __future__ import annotations

from xml.etree.ElementTree import Element

from airflow_provider_raybatch.contract.report import Report
from airflow_provider_raybatch.report import words
from airflow_provider_raybatch.report.comparison import Figures, figures
from airflow_provider_raybatch.report.elements import Content, document, node, words_of
from airflow_provider_raybatch.report.sections.content import content
from airflow_provider_raybatch.report.sections.cost import cost
from airflow_provider_raybatch.report.sections.figures import tiles
from airflow_provider_raybatch.report.sections.origin import origin
from airflow_provider_raybatch.report.sections.quality import quality
from airflow_provider_raybatch.report.sections.speed import speed


def report_page(report: Report) -> str:
    """The page as HTML; encode it in UTF-8."""
    task = report.task
    return document(f"{task.task_id}: report of {task.run_id}", report_body(report))


def report_body(report: Report) -> list[Content]:
    """What the page shows, for pages that show more."""
    shown = figures(report)
    found = (
        quality(report, shown),
        cost(report, shown),
        content(report),
        speed(report, shown),
        origin(report),
    )
    parts = [part for part in found if part is not None]
    return [_head(report), _state(report), _tiles(report, shown), _contents(parts), *parts]


def ending(report: Report) -> tuple[str, str]:
    """What happened to the dataset, and why; the second is empty for a dataset that is complete."""
    if report.state == "committed":
        unanswered = 0 if report.counts is None else report.counts.unanswered
        errors = (report.errors or 0) - unanswered
        failed = f", {words.count(errors)} failed" if errors else ""
        noun = "row" if report.rows == 1 else "rows"
        told = f"{words.count(report.rows)} good {noun}{failed}"
        if unanswered:
            return f"The batch ended early: {told}, {words.count(unanswered)} not asked before.", ""
        return f"The dataset is complete: {told}.", ""
    if report.failure:
        kind = f" ({report.failure_class.value})" if report.failure_class is not None else ""
        return f"The job failed{kind}, and no dataset was published.", report.failure
    title = "The job ended without saying why, and no dataset was published."
    return title, "It was killed, or its node was lost. Shown is what it noted until then."


def moment(text: str) -> str:
    """A time of ISO 8601 in UTC, without fractions of a second; other text is cut."""
    day, _, clock = text.partition("T")
    return f"{day} {clock[:8]} UTC"[:40] if clock.endswith(("+00:00", "Z")) else text[:40]


def _head(report: Report) -> Element:
    task = report.task
    mapped = "" if task.map_index < 0 else f" [{task.map_index}]"
    made: list[Content] = [
        "DAG ",
        words_of(task.dag_id),
        ", run ",
        words_of(task.run_id),
        ", ",
        _time(report.created_at),
        f", after {words.seconds(report.seconds)}",
    ]
    return node("header", node("h1", words_of(task.task_id), mapped), node("p", made, class_="dim"))


def _state(report: Report) -> Element:
    title, why = ending(report)
    if report.state == "committed":
        return node("p", title, class_="state failed" if report.errors and not report.rows else "state")
    return node("p", node("strong", title), " ", words_of(why, 2000), class_="state failed")


def _tiles(report: Report, shown: Figures) -> Element | None:
    if report.rows is None and report.cost is None:
        return None
    last = report.last_run
    picked = [
        shown.rows,
        shown.errors,
        shown.tokens_paid,
        shown.seconds,
        shown.gpu_hours if shown.cost.is_unknown else shown.cost,
    ]
    made = None
    if last is not None:
        when: list[Content] = [" of ", _time(last.created_at)] if last.created_at else []
        made = node("p", "Compared with the task's last dataset", when, ".", class_="dim")
    return node("div", tiles(picked), made)


def _contents(parts: list[Element]) -> Element:
    links = [node("a", part[0].text or "", href=f"#{part.get('id')}") for part in parts]
    return node("nav", links, aria_label="Contents")


def _time(text: str) -> Element:
    return words_of(moment(text))
