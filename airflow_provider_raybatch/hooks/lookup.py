# SPDX-License-Identifier: Apache-2.0
"""Connections outside of tasks: in notebooks and in this package's commands."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Iterator

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
