# SPDX-License-Identifier: Apache-2.0
"""The log of a job of this package that is a verb's output."""

from __future__ import annotations

from airflow_provider_raybatch.cluster.follow.log_tail import for_task_log
from airflow_provider_raybatch.contract.event_line import MARKER
from airflow_provider_raybatch.contract.text import clean


class PrintedOfJob:
    """Prints what a job says; the part of a logger that followers of a job use.

    Without what Ray says around it, what steers a terminal, and the signed documents of events.
    """

    def info(self, event: str, *args: object) -> None:
        """Print a line, unless it is Ray's."""
        line = for_task_log(event % args if args else event, batch=True)
        if line is not None:
            sentence, marker, _ = line.rpartition(MARKER)
            print(clean(sentence.rstrip() if marker else line), flush=True)

    warning = error = info
