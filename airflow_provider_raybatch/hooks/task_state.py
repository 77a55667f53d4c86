# SPDX-License-Identifier: Apache-2.0
"""The state of a task, as Airflow tells it to a running task or trigger."""

from __future__ import annotations

from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance  # heavy, so not inside a coroutine


def task_state(dag_id: str, run_id: str, task_id: str, map_index: int) -> str | None:
    """State of a task in Airflow; ``None`` when it was cleared or is gone. Blocks."""
    states = RuntimeTaskInstance.get_task_states(
        dag_id=dag_id, task_ids=[task_id], run_ids=[run_id], map_index=map_index
    )
    state = (states.get(run_id) or {}).get(f"{task_id}_{map_index}" if map_index >= 0 else task_id)
    return None if state is None else str(state)
