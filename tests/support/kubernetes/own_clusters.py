# SPDX-License-Identifier: Apache-2.0
"""Tasks with a cluster of their own on a STAND-IN for a Kubernetes, step by step as Airflow takes them."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.exceptions import TaskDeferred
from airflow.sdk.module_loading import import_string

from tests.support.airflow_tasks import Run
from tests.support.fake_ray import FakeRay
from tests.support.kubernetes.world import World

Batch = Callable[..., Any]
"""Makes a batch inference on a cluster of its own."""
GONE = {
    "timeout": ("__fail__", {"error": "TIMEOUT"}),
    "failure": ("__fail__", {"error": "Trigger failure", "traceback": None}),
}
"""How Airflow resumes a task whose trigger is lost."""


def objects(kubernetes: World) -> list[str]:
    """Return what is left of clusters and their tokens."""
    kinds = ("RayJob", "RayCluster", "Secret", "Pod")
    return [f"{kind} {one['metadata']['name']}" for kind in kinds for one in kubernetes.store.all(kind)]


def until(holds: Callable[[], object]) -> None:
    end = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)


def heads(kubernetes: World) -> list[FakeRay]:
    return list(kubernetes.runtime.heads.values())


def deferral(operator: Any, run: Run, resumed: tuple[str, Any] | None = None) -> TaskDeferred:
    """Run an attempt, or its continuation, up to its deferral."""
    with pytest.raises(TaskDeferred) as caught:
        go_on(operator, run, resumed)
    return caught.value


def go_on(operator: Any, run: Run, resumed: tuple[str, Any] | None = None) -> Any:
    if resumed is None:
        return operator.execute(run.context())
    return operator.resume_execution(resumed[0], resumed[1], run.context())


def fired(deferred: TaskDeferred) -> tuple[str, Any]:
    """Run a deferred task's trigger, as the triggerer would make it; return how the task is resumed."""
    path, arguments = deferred.trigger.serialize()
    trigger = import_string(path)(**json.loads(json.dumps(arguments)))

    async def event() -> Any:
        return await anext(trigger.run())

    payload = asyncio.run(event()).payload
    return deferred.method_name, {"event": json.loads(json.dumps(payload))}


def claims(kubernetes: World) -> list[str]:
    """Return the RayJobs that Airflow has asked for so far, with each name once."""
    asked = [one for one in kubernetes.server.faults.requests if (one.verb, one.kind) == ("create", "RayJob")]
    return [one.name for one in asked if one.user == "airflow"]


def made_trigger(deferred: TaskDeferred, run: Run) -> Any:
    """Return a deferred task's trigger as the triggerer makes it, which knows its task."""
    path, arguments = deferred.trigger.serialize()
    trigger = import_string(path)(**json.loads(json.dumps(arguments)))
    trigger.task_instance = SimpleNamespace(**run.ids)
    return trigger
