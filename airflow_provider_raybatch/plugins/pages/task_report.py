# SPDX-License-Identifier: Apache-2.0
"""The report of a task instance."""

from __future__ import annotations

from airflow_provider_raybatch.plugins.looking import Look
from airflow_provider_raybatch.plugins.pages.frame import NO_REPORT, Frame, head, notes, nothing, page
from airflow_provider_raybatch.report.page import report_body


def report_page(look: Look, frame: Frame) -> str:
    """The page, made anew from the data: a stored page has what a writer of the destination put into it."""
    if look.report is None:
        return page(look, "", frame, head(look, "Report"), nothing(look, frame, NO_REPORT))
    return page(look, "", frame, notes(look), report_body(look.report))
