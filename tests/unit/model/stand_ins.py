# SPDX-License-Identifier: Apache-2.0
"""Replacements for network, threads, time and Airflow around operator and trigger."""

from __future__ import annotations

import random
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import httpx
from airflow.sdk.bases.operator import ExecutorSafeguard
from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

from airflow_provider_raybatch.cluster.jobs_api import client as jobs
from airflow_provider_raybatch.cluster.jobs_api.blocking import call_within, run_blocking
from airflow_provider_raybatch.cluster.jobs_api.transport import Transport
from airflow_provider_raybatch.hooks.connection import RayConnection
from airflow_provider_raybatch.hooks.ray import RayHook
from airflow_provider_raybatch.operators import batch_plan, ray_batch
from airflow_provider_raybatch.triggers import killable

from .operators import OPERATORS
from .task import World

CONNECTION = RayConnection(conn_id="ray_default", url="http://ray:8265/", namespace="n")


@contextmanager
def modelled() -> Iterator[Callable[..., World]]:
    """Replace everything outside operator, trigger and client by the model; yield a maker of worlds.

    Threads that other tests have left keep the real thing: they would move a world's clock, and take random
    numbers from it.
    """
    world: list[World] = []
    chance = random.Random()
    of_model = threading.get_ident()

    class Wire(Transport):
        async def __aenter__(self) -> Wire:
            return self

        async def __aexit__(self, *args: object) -> None:
            pass

        async def _once(self, method: str, path: str, tolerated: int | None, most: int, **sent: Any) -> Any:
            body = sent.get("content", sent.get("json"))
            answer = await world[-1].request(method, path, sent.get("params"), body)
            if answer is None:
                raise self._transport_error(httpx.ReadError("the connection broke"))
            if answer.is_success or answer.status_code == tolerated:
                return answer
            raise self.status_error(f"{method} {path}", answer)

    class ForModel:
        """A module, with another one in its place where the model runs."""

        def __init__(self, original: object, stand_in: Callable[[], object]) -> None:
            self.original, self.stand_in = original, stand_in

        def __getattr__(self, name: str) -> Any:
            is_model = threading.get_ident() == of_model
            return getattr(self.stand_in() if is_model else self.original, name)

    async def connection(hook: object) -> RayConnection:
        return CONNECTION

    def threadless(call: Callable[..., Any]) -> Callable[..., Any]:
        async def called(*args: Any, **kwargs: Any) -> Any:
            return call(*args, **kwargs)

        return called

    def make(*args: Any, **kwargs: Any) -> World:
        chance.seed(1)
        if world:
            world.pop().loops.close()
        world.append(World(*args, **kwargs))
        return world[-1]

    spec = batch_plan.spec_of_fields(ray_batch.fields_of(OPERATORS[True].arguments()))
    with ExitStack() as stack:
        for owner, name, stand_in in (
            (jobs, "Transport", Wire),
            (killable, "sync_to_async", threadless),
            (batch_plan, "spec_of_fields", lambda fields: spec),
            (RayHook, "read", lambda hook: CONNECTION),
            (RayHook, "aread", connection),
            (RuntimeTaskInstance, "get_task_states", lambda **asked: world[-1].states(**asked)),
            (ExecutorSafeguard, "test_mode", True),
        ):
            stack.enter_context(mock.patch.object(owner, name, stand_in))
        stack.enter_context(_everywhere("time", time, ForModel(time, lambda: world[-1].clock)))
        stack.enter_context(_everywhere("random", random, ForModel(random, lambda: chance)))
        stack.enter_context(
            _everywhere("run_blocking", run_blocking, lambda coroutine: world[-1].loops.run(coroutine))
        )
        stack.enter_context(
            _everywhere("call_within", call_within, lambda seconds, call: world[-1].within(seconds, call))
        )
        yield make
    if world:
        world.pop().loops.close()


@contextmanager
def _everywhere(name: str, original: object, stand_in: object) -> Iterator[None]:
    """Replace it in all modules of the package that have it."""
    modules = [
        module
        for path, module in sys.modules.items()
        if path.startswith("airflow_provider_raybatch.") and getattr(module, name, None) is original
    ]
    for module in modules:
        setattr(module, name, stand_in)
    try:
        yield
    finally:
        for module in modules:
            setattr(module, name, original)
