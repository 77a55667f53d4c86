# SPDX-License-Identifier: Apache-2.0
"""The common part of the chaos DAGs: each has one batch inference, whose arguments come with the run."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

from airflow.sdk import DAG

PARAMS: dict[str, Any] = {
    "source": "",
    "destination": "",
    "prompt": "",
    "steps": None,
    "sampling": {},
    "engine_args": {},
    "replicas": 1,
    "batch_size": 8,
    "rows_in_flight": 16,
    "flush_interval": 10.0,
    "keep_warm": None,
    "aws_conn_id": None,
    "timeout": None,
    "rows_per_part": None,
    "reuse": None,
    "runtime_env": None,
}
"""Arguments that a run may give."""


def dag_of_runs(dag_id: str, at_once: int, retry_seconds: float, **params: Any) -> DAG:
    """Return a DAG without a task.

    :param at_once: maximum number of runs at the same time.
    :param params: more than `PARAMS`.
    """
    return DAG(
        dag_id,
        schedule=None,
        params={**PARAMS, **params},
        max_active_runs=at_once,
        render_template_as_native_obj=True,  # params keep their types
        default_args={"retry_delay": timedelta(seconds=retry_seconds)},
    )


def arguments(deferrable: bool, max_restarts: int = 3, **others: Any) -> dict[str, Any]:
    """Return the arguments of a task, by the run's params; `others` replace them."""
    by_run = {name: f"{{{{ params.{name} }}}}" for name in PARAMS}
    return {
        "task_id": "infer",
        "deferrable": deferrable,
        "poll_interval": float(os.environ["CHAOS_POLL_INTERVAL"]),
        "engine": "echo",
        # By default, without an autoscaler, a job is refused at once while its nodes are being replaced.
        "limits": {"cluster_wait": 180, "max_restarts": max_restarts},
        "advanced": {name: by_run.pop(name) for name in ("batch_size", "rows_in_flight", "flush_interval")},
        "output_options": {"rows_per_part": by_run.pop("rows_per_part")},
        **by_run,
        **others,
    }
