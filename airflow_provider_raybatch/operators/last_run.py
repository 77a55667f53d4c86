# SPDX-License-Identifier: Apache-2.0
"""What the task returned in the DAG run before, and the numbers of it that a job's report compares with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow.sdk import TaskInstanceState

from airflow_provider_raybatch.contract.last_run import LastRun, numbers_in

if TYPE_CHECKING:
    from airflow.sdk import Context


def result_before(context: Context) -> Mapping[str, Any] | None:
    """What the task returned in the DAG run before, ``None`` if that can't be known.

    Where each run has its own destination, the job can't tell.
    """
    ti = context["ti"]
    try:
        # Airflow writes an error into the log for an XCom that does not exist.
        index = -1 if ti.map_index is None else ti.map_index
        before = ti.get_previous_ti(state=TaskInstanceState.SUCCESS, map_index=index)
        if before is None:
            return None
        found = ti.xcom_pull(run_id=before.run_id, map_indexes=index)
    except Exception:
        return None  # it is one figure in one line
    known = isinstance(found, Mapping) and all(isinstance(found.get(key), int) for key in ("rows", "errors"))
    return found if known else None


def last_run_before(context: Context) -> LastRun | None:
    """The numbers of :func:`result_before`."""
    found = result_before(context)
    return None if found is None else numbers_of(found)


def numbers_of(result: Mapping[str, Any]) -> LastRun | None:
    """The numbers of a task's return value, ``None`` where it does not tell its rows."""
    found = numbers_in(result)
    return LastRun(**found) if {"rows", "errors"} <= found.keys() else None
