# SPDX-License-Identifier: Apache-2.0
"""The common part of the chaos DAGs: each has one task, whose arguments come with the run."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow.sdk import DAG

PARAMS: dict[str, Any] = {"source": "", "destination": "", "prompt": "", "sampling": {}, "engine_args": {}}
"""Those that every run has."""


def dag_of_runs(dag_id: str, params: dict[str, Any], at_once: int, retry_seconds: float, **task: Any) -> DAG:
    """Return a DAG without a task.

    :param at_once: maximum number of runs at the same time.
    :param task: default arguments of the tasks.
    """
    return DAG(
        dag_id,
        schedule=None,
        params=params,
        max_active_runs=at_once,
        render_template_as_native_obj=True,  # params keep their types
        default_args={"retry_delay": timedelta(seconds=retry_seconds), **task},
    )
