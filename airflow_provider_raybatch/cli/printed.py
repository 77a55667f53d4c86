# SPDX-License-Identifier: Apache-2.0
"""A log that is a verb's output."""

from __future__ import annotations

from airflow_provider_raybatch.cluster.follow.ray_lines import for_task_log
from airflow_provider_raybatch.contract.event_line import MARKER
from airflow_provider_raybatch.contract.text import clean


class Printed:
    """Prints each line; the part of a logger that followers of a job use."""

    def info(self, event: str, *args: object) -> None:
        """Print a line."""
        print(for_people(event % args if args else event), flush=True)

    warning = error = info


class PrintedOfJob(Printed):
    """Prints the lines of a job of this package, without what Ray says around them."""

    def info(self, event: str, *args: object) -> None:
        """Print a line, unless it is Ray's."""
        line = for_task_log(event % args if args else event, batch=True)
        if line is not None:
            super().info("%s", line)

    warning = error = info


PRINTED = Printed()


def for_people(line: str) -> str:
    """A line of a driver's log without what steers a terminal, and without an event's signed document."""
    sentence, marker, _ = line.rpartition(MARKER)
    return clean(sentence.rstrip() if marker else line)
