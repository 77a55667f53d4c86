# SPDX-License-Identifier: Apache-2.0
"""What Airflow knows outside of a task's own code: connections, the state of a task, and its own id.

The installation's id keeps its jobs apart from those of other Airflows.
"""

from __future__ import annotations

import contextlib
import os
import random
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NoReturn, TypeVar

from airflow.sdk import BaseHook, Variable
from airflow.sdk.exceptions import AirflowNotFoundException
from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance  # heavy, so not inside a coroutine

from airflow_provider_raybatch.contract.text import plain_reason
from airflow_provider_raybatch.exceptions import RayBatchUnavailableException

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


VARIABLE = "raybatch_installation_id"

_DESCRIPTION = (
    "Keeps the Ray jobs of this Airflow apart from those of other Airflows on the same cluster. Made by "
    "airflow-provider-raybatch; a copy of this database needs another value, or a namespace in its Ray "
    "connections."
)
_PAUSE = 1.0
_LONGEST_STAGGER = 3.0
"""Seconds that a first task waits at most, at random, before it writes."""
_READS = 60
_EQUAL_READS = 3
_EMPTY_READS = 10

Value = TypeVar("Value")


def installation_id(team: str | None = None) -> str:
    """The id in the Airflow Variable ``raybatch_installation_id``, made by the first task that asks.

    A multi-team Airflow has one Variable of a name for all teams: another team's task can't read it, and its
    write replaces the value. So a task of a team makes a Variable with the team's name.

    Airflow can't create a Variable on condition. So tasks that find none wait for random times before they
    write; most of them then find the first one's value. If two write, the last one wins, and each reads until
    the value has been the same for some seconds. A write that arrives even later (Airflow repeats one whose
    answer is late) does little harm: a run keeps the namespace in its record.

    :param team: of the task, in a multi-team Airflow; such a task also takes a Variable for all teams.
    :raises RayBatchException: the Variable can't be read or written; a retry asks again.
    """
    name = VARIABLE if team is None else f"{VARIABLE}_of_{team}"
    found = _read(name) or (None if team is None else _read(VARIABLE))
    if found is not None:
        return found
    # Airflow also says "not found" while its API server or a secrets backend gives no answer. The list of
    # keys comes from the database alone, and an error stays an error.
    if name in _asked(name, "listed", lambda: list(Variable.keys(prefix=name))):
        # Another task may have made it meanwhile; or it is another team's.
        return _stable_value(name, "read", "Airflow lists it and gives no value")
    time.sleep(random.uniform(0, _LONGEST_STAGGER))
    if _read(name) is not None:
        return _stable_value(name, "read", "it was there a moment ago")
    made = str(uuid.uuid4())
    _asked(name, "stored", lambda: Variable.set(name, made, description=_DESCRIPTION))
    return _stable_value(name, "stored", "what was written can't be read")


def known_installation_id(team: str | None = None) -> str | None:
    """The id, outside of a task; ``None`` if no task has made one yet, or the Variable can't be read.

    :param team: of the task, in a multi-team Airflow, as for :func:`installation_id`.
    """
    with server_lookup():
        try:
            own = None if team is None else _read(f"{VARIABLE}_of_{team}")
            return own or _read(VARIABLE)
        except RayBatchUnavailableException:
            return None


def _stable_value(name: str, failed: str, why: str) -> str:
    """The value, once it has been the same for some reads; `failed` and `why` are for the error."""
    last, equal = None, 0
    for _ in range(_READS):
        found = _read(name)
        equal = equal + 1 if found == last else 1
        last = found
        if last is not None and equal >= _EQUAL_READS:
            return last
        if last is None and equal >= _EMPTY_READS:
            break
        time.sleep(_PAUSE)
    if last is None:
        _fail(name, failed, why)
    return last


def _read(name: str) -> str | None:
    found: object = _asked(name, "read", lambda: Variable.get(name, default=None))
    return str(found).strip() or None if found is not None else None


def _asked(name: str, what: str, call: Callable[[], Value]) -> Value:
    try:
        return call()
    except Exception as error:
        _fail(name, what, plain_reason(error), error)


def _fail(name: str, what: str, why: str, cause: Exception | None = None) -> NoReturn:
    raise RayBatchUnavailableException(
        f"Variable {name!r}: it can't be {what} ({why}), so nothing was submitted; a retry asks again, "
        "and a namespace in the Ray connection's extra replaces it.",
    ) from cause
