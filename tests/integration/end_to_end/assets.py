# SPDX-License-Identifier: Apache-2.0
"""Asset events of a run, and the runs that they start."""

from __future__ import annotations

from typing import Any

from .rest import Run
from .waiting import wait_for


def event_of(run: Run, task_id: str) -> dict[str, Any]:
    """Return the one event of a finished task."""
    filters = {"source_dag_id": run.dag_id, "source_run_id": run.run_id, "source_task_id": task_id}
    (event,) = run.api.asset_events(**filters)
    return event


def run_after(run: Run, task_id: str) -> Run:
    """Return the one run that the event of a finished task started."""

    def started_runs() -> list[dict[str, str]]:
        started: list[dict[str, str]] = event_of(run, task_id)["created_dagruns"]
        return started

    (started,) = wait_for("the run that the event starts", started_runs, 60, run.evidence)
    return Run(run.api, started["dag_id"], started["run_id"])
