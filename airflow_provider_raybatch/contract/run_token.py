# SPDX-License-Identifier: Apache-2.0
"""The token of a run: part of the ids of its jobs, whose form it tells, and of the order of a task's runs."""

from __future__ import annotations

import re
import uuid

_NAMED = "named-"
_NUMBERED = re.compile(rf"{_NAMED}try(\d+)-")


def new_run_token(try_number: int) -> str:
    """A token for a new run of a task.

    :param try_number: of the attempt that begins the run. Airflow counts tries in its database and never
        counts back while a DAG run exists, so a later run has a higher number, whatever the clocks say.
    """
    return f"{_NAMED}try{try_number}-{uuid.uuid4()}"


def run_number(run_token: str) -> int:
    """What orders the runs of a task: the try that began the run; 0 for a run that an older version began."""
    found = _NUMBERED.match(run_token)
    return int(found.group(1)) if found else 0


def names_its_jobs(run_token: str) -> bool:
    """Whether the ids of the run's jobs contain its DAG and task. Those of older versions' runs don't."""
    return run_token.startswith(_NAMED)
