# SPDX-License-Identifier: Apache-2.0
"""How a job ended, in words."""

from __future__ import annotations

from airflow_provider_raybatch.contract.report import Report
from airflow_provider_raybatch.report import words


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
