# SPDX-License-Identifier: Apache-2.0
"""What Airflow knows outside of a task's own code: connections, and the state of a task."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
from collections.abc import Iterator

from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance  # heavy, so not inside a coroutine

from airflow_provider_raybatch.cluster.kuberay.sweep import ACTIVE_RUNS, RunFate
from airflow_provider_raybatch.contract.submission import TaskKey

_CONTEXT = "_AIRFLOW_PROCESS_CONTEXT"
_TASK_RUNNER = "airflow.sdk.execution_time.task_runner"
_lock = threading.RLock()


@contextlib.contextmanager
def server_lookup() -> Iterator[None]:
    """Let Airflow look connections up in its database, too, as its own command line does.

    In a task, a trigger or a DAG file, Airflow's supervisor answers, and this changes nothing.
    """
    if getattr(sys.modules.get(_TASK_RUNNER), "SUPERVISOR_COMMS", None):
        yield  # without the lock: the supervisor may need this process meanwhile
        return
    with _lock:  # another thread would remove what this one needs
        if _CONTEXT in os.environ:
            yield
            return
        os.environ[_CONTEXT] = "server"
        try:
            yield
        finally:
            del os.environ[_CONTEXT]


_log = logging.getLogger(__name__)


def task_state(dag_id: str, run_id: str, task_id: str, map_index: int) -> str | None:
    """State of a task in Airflow; ``None`` when it was cleared or is gone. Blocks."""
    states = RuntimeTaskInstance.get_task_states(
        dag_id=dag_id, task_ids=[task_id], run_ids=[run_id], map_index=map_index
    )
    state = (states.get(run_id) or {}).get(f"{task_id}_{map_index}" if map_index >= 0 else task_id)
    return None if state is None else str(state)


def task_fate(task: TaskKey) -> RunFate:
    """What Airflow says of any task, asked from a running one. Blocks."""
    try:
        if RuntimeTaskInstance.get_dr_count(dag_id=task.dag_id, run_ids=[task.run_id]) == 0:
            return RunFate(exists=False)
        states = RuntimeTaskInstance.get_task_states(
            dag_id=task.dag_id, task_ids=[task.task_id], run_ids=[task.run_id], map_index=task.map_index
        ).get(task.run_id, {})
        active = RuntimeTaskInstance.get_dr_count(
            dag_id=task.dag_id, run_ids=[task.run_id], states=list(ACTIVE_RUNS)
        )
    except Exception:  # what can't be asked is not known, and so nothing is deleted
        _log.warning("Airflow's API server did not say how %s is.", task, exc_info=True)
        return RunFate(known=False)
    name = f"{task.task_id}_{task.map_index}" if task.map_index >= 0 else task.task_id
    if name not in states:
        return RunFate(exists=False)
    state = None if states[name] is None else str(states[name])
    return RunFate(state=state, run_active=active > 0)
