# SPDX-License-Identifier: Apache-2.0
"""The processes of a task: its worker, the triggerer's, and the sweeper's. Each may get SIGKILL at any time.

Airflow itself stands in: its task state store is a file, and the task's state another one; what it would do
next is done by :mod:`.airflow`. Operator, trigger, Kubernetes client and Jobs API client are the real ones.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import logging
import os
import signal
import sys
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from airflow.sdk.exceptions import AirflowFailException, TaskDeferred
from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

from airflow_provider_raybatch.cluster.follow import loop
from airflow_provider_raybatch.cluster.jobs_api.transport import RetryPolicy
from airflow_provider_raybatch.cluster.submit import resolve
from airflow_provider_raybatch.kubernetes.cluster import KubeRayCluster
from airflow_provider_raybatch.kubernetes.clusters import heartbeat
from airflow_provider_raybatch.kubernetes.kuberay import claim, lifecycle, waiting
from airflow_provider_raybatch.kubernetes.operators import CreateRayCluster, DeleteRayCluster
from airflow_provider_raybatch.operators.ray_batch import RayBatchInferenceOperator
from tests.support.airflow_tasks import Run, Store

from .calls import Calls, Strike

INSTALLATION = "this-airflow"
_log = logging.getLogger(__name__)

DAG, TASK, RUN_ID = "chaos", "answer", "r"

_PAUSES: tuple[tuple[Any, str, float], ...] = (
    (claim, "_WAIT", 0.05),
    (lifecycle, "_WAIT", 0.05),
    (loop, "_ASK_AGAIN_SECONDS", 0.1),
    (resolve, "_POST_WAIT", 0.1),
    (waiting, "_POLL", 0.1),
    (heartbeat, "_PAUSE", 0.3),
    (heartbeat, "_SILENT_PAUSE", 0.1),
)


@dataclass
class Setting:
    """What every process of a round needs.

    :param folder: of the round.
    :param env: of the processes.
    :param arguments: of the operator, without `ray_cluster`.
    :param fast: whether pauses are shortened.
    :param step: the task of a DAG run whose tasks share a cluster; empty for a task with one of its own.
    :param shared: that cluster, as the first task returned it.
    """

    folder: Path
    env: dict[str, str]
    cluster: dict[str, Any]
    arguments: dict[str, Any]
    deferrable: bool
    fast: bool = True
    strikes: list[Strike] = field(default_factory=list)
    step: str = ""
    shared: dict[str, Any] | None = None

    @property
    def state(self) -> Path:
        return self.folder / "state"

    @property
    def task_id(self) -> str:
        return self.step or TASK

    def role(self, part: str) -> str:
        """Name of a process, which differs from those of other tasks of the DAG run."""
        return f"{self.step} {part}".strip()


class FileStore(Store):
    """The task state store, which outlives the processes."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self._file = file

    def get(self, key: str, default: Any = None) -> Any:
        self.values = json.loads(self._file.read_text()) if self._file.exists() else {}
        return super().get(key, default)

    def set(self, key: str, value: Any, **options: Any) -> None:
        self.get(key)
        super().set(key, value, **options)
        fresh = self._file.with_suffix(f".{os.getpid()}")
        fresh.write_text(json.dumps(self.values))
        fresh.replace(self._file)


def work(setting: Setting, role: str, tries: tuple[int, int], event: Any, tell: Connection) -> None:
    """An attempt of the task: ``execute``, or ``execute_complete`` with an event.

    :param tries: its number, and the last number that there may be.
    """
    calls = _begin(setting, role, tell)
    operator = _operator(setting)
    run = Run(DAG, setting.task_id, RUN_ID)
    run.store = FileStore(setting.folder / "store.json")
    run.try_number, run.max_tries = tries

    def terminated(number: int, frame: object) -> None:
        calls.role = setting.role("stop")
        operator.on_kill()

    signal.signal(signal.SIGTERM, terminated)
    try:
        if event is None:
            result = operator.execute(run.context())
        else:
            method, kwargs, payload = event
            result = getattr(operator, method)(run.context(), event=payload, **kwargs)
    except TaskDeferred as deferral:
        classpath, kwargs = deferral.trigger.serialize()
        text = json.dumps(kwargs, default=str)
        tell.send(("deferred", (classpath, text, deferral.method_name, deferral.kwargs or {})))
    except AirflowFailException as error:
        tell.send(("failed", str(error)))
    except BaseException as error:
        _log.exception("The attempt ended")
        tell.send(("error", f"{type(error).__name__}: {error}"))
    else:
        tell.send(("success", json.loads(json.dumps(result, default=str))))


def _operator(setting: Setting) -> Any:
    own: Any = KubeRayCluster(**setting.cluster)
    if setting.step == "create":
        return CreateRayCluster(task_id=setting.step, ray_cluster=own)
    if setting.step == "delete":
        return DeleteRayCluster(task_id=setting.step, ray_cluster=setting.shared or {})
    return RayBatchInferenceOperator(
        task_id=setting.task_id,
        ray_cluster=setting.shared or own,
        deferrable=setting.deferrable,
        **setting.arguments,
    )


def trigger(setting: Setting, role: str, classpath: str, kwargs: str, tell: Connection) -> None:
    """What a triggerer does with a trigger; SIGTERM stands for Airflow's cancellation of it."""
    calls = _begin(setting, role, tell)
    module, _, name = classpath.rpartition(".")
    made = getattr(importlib.import_module(module), name)(**json.loads(kwargs))
    made.task_instance = Run(DAG, setting.task_id, RUN_ID).context()["ti"]  # type: ignore[assignment]

    async def follow() -> Any:
        events = made.run()
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        loop.add_signal_handler(signal.SIGTERM, task.cancel)
        try:
            async for event in events:
                return event.payload
        except asyncio.CancelledError:
            calls.role = setting.role("stop")
            await made.on_kill()
            raise
        return None

    try:
        tell.send(("event", asyncio.run(follow())))
    except asyncio.CancelledError:
        tell.send(("ended", None))
    except BaseException as error:
        _log.exception("The trigger ended")
        tell.send(("error", f"{type(error).__name__}: {error}"))


def sweeper(setting: Setting, tell: Connection) -> None:
    """What the example DAG of the sweeper does."""
    _begin(setting, "sweeper", tell)
    from airflow_provider_raybatch.kubernetes import left_clusters

    left_clusters._fate = lambda task: _fate(setting)  # type: ignore[assignment]
    try:
        tell.send(("swept", left_clusters.delete_left_clusters()))
    except BaseException as error:
        _log.exception("The sweeper failed")
        tell.send(("error", f"{type(error).__name__}: {error}"))


def _fate(setting: Setting) -> Any:
    from airflow_provider_raybatch.kubernetes.kuberay.sweep import RunFate

    return RunFate(state=setting.state.read_text())


def _begin(setting: Setting, role: str, tell: Connection) -> Calls:
    os.environ.update(setting.env)
    log = os.open(setting.folder / "log.txt", os.O_CREAT | os.O_APPEND | os.O_WRONLY)
    os.dup2(log, 1)
    os.dup2(log, 2)
    form = f"%(asctime)s.%(msecs)03d {role} {os.getpid()} %(name)s: %(message)s"
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format=form, datefmt="%H:%M:%S", force=True)
    logging.getLogger("httpx").setLevel(logging.WARNING)
    if setting.fast:
        _hurry()

    def states(**asked: Any) -> dict[str, dict[str, str]]:
        state = setting.state.read_text()
        return {RUN_ID: {setting.task_id: state}} if state else {}

    RuntimeTaskInstance.get_task_states = staticmethod(states)  # type: ignore[assignment]
    calls = Calls(setting.role(role), setting.strikes, tell)
    calls.watch()
    return calls


def _hurry() -> None:
    """Shorten the pauses between two looks."""
    for module, name, seconds in _PAUSES:
        assert hasattr(module, name), f"{module.__name__} has no {name}"
        setattr(module, name, seconds)
    RetryPolicy.wait = lambda self, attempt: 0.1  # type: ignore[method-assign,assignment]
