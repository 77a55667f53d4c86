# SPDX-License-Identifier: Apache-2.0
"""The token of a run: part of the ids of its jobs, and of the order of a task's runs."""

from __future__ import annotations

import re
import uuid

_NUMBERED = re.compile(r"try(\d+)-")


def new_run_token(try_number: int) -> str:
    """A token for a new run of a task.

    :param try_number: of the attempt that begins the run. Airflow counts tries in its database and never
        counts back while a DAG run exists, so a later run has a higher number, whatever the clocks say.
    """
    return f"try{try_number}-{uuid.uuid4()}"


def run_number(run_token: str) -> int:
    """What orders the runs of a task: the try that began the run; 0 for a token that names none."""
    found = _NUMBERED.match(run_token)
    return int(found.group(1)) if found else 0
