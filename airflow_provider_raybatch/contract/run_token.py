# SPDX-License-Identifier: Apache-2.0
"""The token of a run, which is part of the ids of its jobs and says which form they have."""

from __future__ import annotations

import uuid

_NAMED = "named-"


def new_run_token() -> str:
    """A token for a new run of a task."""
    return f"{_NAMED}{uuid.uuid4()}"


def names_its_jobs(run_token: str) -> bool:
    """Whether the ids of the run's jobs contain its DAG and task. Those of older versions' runs don't."""
    return run_token.startswith(_NAMED)
