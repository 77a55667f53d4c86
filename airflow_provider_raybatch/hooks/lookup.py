# SPDX-License-Identifier: Apache-2.0
"""What Airflow knows outside of a task's own code: connections, and the state of a task."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

from airflow.sdk import BaseHook
from airflow.sdk.exceptions import AirflowNotFoundException
from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance  # heavy, so not inside a coroutine

if TYPE_CHECKING:
    from airflow.sdk import Connection

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


class ConnectionHook(BaseHook):
    """A hook whose connection is also found where no task runs."""

    @classmethod
    def get_connection(cls, conn_id: str) -> Connection:
        """As Airflow's; outside of tasks it also reads Airflow's database."""
        with server_lookup():
            return super().get_connection(conn_id)

    @classmethod
    async def afind_connection(cls, conn_id: str) -> Connection:
        """As :meth:`get_connection`, without blocking the event loop."""
        try:
            return await cls.aget_connection(conn_id)
        except AirflowNotFoundException:
            # Outside of tasks, and in `airflow dags test` (3.3), only the blocking call finds it.
            from asgiref.sync import sync_to_async

            return await sync_to_async(cls.get_connection)(conn_id)


def task_state(dag_id: str, run_id: str, task_id: str, map_index: int) -> str | None:
    """State of a task in Airflow; ``None`` when it was cleared or is gone. Blocks."""
    states = RuntimeTaskInstance.get_task_states(
        dag_id=dag_id, task_ids=[task_id], run_ids=[run_id], map_index=map_index
    )
    state = (states.get(run_id) or {}).get(f"{task_id}_{map_index}" if map_index >= 0 else task_id)
    return None if state is None else str(state)
