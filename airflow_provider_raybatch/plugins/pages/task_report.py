# SPDX-License-Identifier: Apache-2.0
"""The report of a task instance, and which of its rows failed, why, and where they are."""

from __future__ import annotations

from airflow_provider_raybatch.contract.layout import DEAD_LETTER
from airflow_provider_raybatch.contract.report import Report
from airflow_provider_raybatch.contract.text import cut_to
from airflow_provider_raybatch.plugins.looking import Look
from airflow_provider_raybatch.plugins.pages.dataset import code, opening
from airflow_provider_raybatch.plugins.pages.frame import NO_REPORT, Frame, head, notes, nothing, page
from airflow_provider_raybatch.report.comparison import figures
from airflow_provider_raybatch.report.elements import Content, node, section
from airflow_provider_raybatch.report.page import report_body
from airflow_provider_raybatch.report.sections.quality import quality

_FOLDER = "Each failed row with its reason and what was asked, as lines of JSON, in the folder"
_LONGEST_PATH = 2000


def report_page(look: Look, frame: Frame) -> str:
    """The page, made anew from the data: a stored page has what a writer of the destination put into it."""
    if look.report is None:
        return page(look, "", frame, head(look, "Report"), nothing(look, frame, NO_REPORT))
    return page(look, "", frame, notes(look), report_body(look.report))


def failed_rows_page(look: Look, frame: Frame) -> str:
    """The page."""
    title = head(look, "Failed rows")
    report, manifest = look.report, look.found.manifest
    if report is None and manifest is None:
        return page(look, "failed", frame, title, nothing(look, frame))
    if report is None:
        shown = node("p", NO_REPORT)
    else:
        shown = quality(report, figures(report)) or node("p", "No row was counted.", class_="dim")
    return page(look, "failed", frame, title, notes(look), shown, _where(look))


def _where(look: Look) -> Content:
    report, manifest = look.report, look.found.manifest
    if report is not None and report.state != "committed":
        return section("where", "Where are they?", _of_job(look, report))
    if manifest is None or not manifest.content.counts.error:
        return section("where", "Where are they?", node("p", "No row of the dataset failed."))
    return section(
        "where",
        "Where are they?",
        node("p", _FOLDER),
        code(f"{look.destination}/{DEAD_LETTER}/{look.found.commit}"),
        node("p", "As a table of Arrow in Python:"),
        code(*opening(look), "failed = dataset.dead_letters()"),
    )


def _of_job(look: Look, report: Report) -> list[Content]:
    """Of a job without a dataset, whose folder is named in its report alone; it is shown as text."""
    folder = report.dead_letter_uri or ""
    if not folder.startswith(f"{look.destination}/{DEAD_LETTER}/"):
        said = "The job published no dataset, and has left no file of its failed rows."
        return [node("p", said)]
    return [node("p", _FOLDER), code(cut_to(_LONGEST_PATH, folder))]
