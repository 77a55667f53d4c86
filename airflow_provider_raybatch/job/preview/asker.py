# SPDX-License-Identifier: Apache-2.0
"""Leases an engine as a replica does, asks it for some rows, and gives it back. Writes nothing."""

from __future__ import annotations

import asyncio
import secrets
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import ray

from airflow_provider_raybatch.contract.preview import RowAnswer
from airflow_provider_raybatch.job.control.private_package import set_environment
from airflow_provider_raybatch.job.engine.base import Engine, EngineDeadError, TogetherEngine
from airflow_provider_raybatch.job.engine_process.opening import open_engine
from airflow_provider_raybatch.job.media.allowed import image_access
from airflow_provider_raybatch.job.media.load import load
from airflow_provider_raybatch.job.monitor.replica_progress import ReplicaProgress, Reporter
from airflow_provider_raybatch.job.preview.row_answer import died
from airflow_provider_raybatch.job.preview.step_answers import PreviewedSteps
from airflow_provider_raybatch.job.replica.row_asker import Read
from airflow_provider_raybatch.job.row import Request, RowFailure
from airflow_provider_raybatch.job.warm_engines.lease import Holder
from airflow_provider_raybatch.job.warm_engines.source import EngineAccess, EngineSource
from airflow_provider_raybatch.job.work import CheckedModel, Job

_POLL = 0.1
_REPORT_SECONDS = 30.0


@dataclass(frozen=True)
class Asking:
    """What is asked. Picklable.

    :param model: what the engine loads.
    :param source: of the engine.
    :param read: the rows.
    """

    job: Job
    model: CheckedModel
    source: EngineSource
    read: Sequence[Read]


def answers(asking: Asking, coordinator: Any) -> list[RowAnswer]:
    """Ask the engine; called in a process of its own.

    :param coordinator: handle of a job's coordinator, which has no rows.
    :returns: an answer for each request, of each step that asks; none if the coordinator drains.
    :raises RaybatchError: the engine can't be started.
    """
    set_environment(asking.job.environment)
    process = f"preview-{secrets.token_hex(8)}"
    report = ReplicaProgress(process, _node(), started=time.time())
    ray.get(coordinator.start.remote(process, process))
    access = asking.source.access(Holder(process, process), report, coordinator)
    stop = threading.Event()
    reporter = Reporter(coordinator, report, access.measure, stop.set, lambda: None)
    spec = asking.model.spec
    try:
        if not access.acquire(lambda: not stop.is_set(), _POLL):
            return []
        proxy = access.import_engine(spec, asking.job.environment, False)
        engine = open_engine(spec, False, proxy, asking.model.files)
        access.opened()
        report.ready()
        return asyncio.run(_answered(asking, engine, access, stop))
    finally:
        report.end()
        ray.get(reporter.send(), timeout=_REPORT_SECONDS)


def _node() -> str:
    return str(ray.get_runtime_context().get_node_id())


async def _answered(
    asking: Asking, engine: Engine, access: EngineAccess, stop: threading.Event
) -> list[RowAnswer]:
    try:
        await engine.prepare()
        return await _asked(asking, TogetherEngine(engine), stop)
    finally:
        await access.give_back(lambda: asyncio.to_thread(engine.close))
        await asyncio.to_thread(engine.close)


async def _asked(asking: Asking, engine: Engine, stop: threading.Event) -> list[RowAnswer]:
    steps = await asyncio.to_thread(PreviewedSteps, asking.job, engine)
    rows = await asyncio.to_thread(steps.begin, asking.read)
    while rows and not stop.is_set():
        requests = steps.requests(rows)
        encoded = await asyncio.to_thread(engine.encode, requests)
        encoded = await asyncio.to_thread(_with_images, asking.job, engine, requests, encoded, stop)
        if stop.is_set():
            return []  # some requests may lack their images
        generated = await _generated(engine, encoded, stop)
        rows = [replace(row, result=made) for row, made in zip(rows, generated, strict=True)]
        if not stop.is_set():
            rows = await asyncio.to_thread(steps.next, rows)
    return [] if stop.is_set() else steps.answers()


def _with_images(
    job: Job, engine: Engine, requests: Sequence[Request], encoded: Sequence[Any], stop: threading.Event
) -> list[Any]:
    """The requests with their images, loaded in this process since they are few; or why they get none.

    :raises StorageError: a store, a disk or a host fails.
    """
    made = list(encoded)
    access = image_access(job.spec, job.listing, job.credentials)
    for place, request in enumerate(requests):
        if not request.images or isinstance(made[place], RowFailure) or stop.is_set():
            continue
        loaded = load(request.images, access)
        try:
            made[place] = (
                loaded if isinstance(loaded, RowFailure) else engine.attach(made[place], loaded.pixels)
            )
        except EngineDeadError as error:
            made[place] = died(error)
    return made


async def _generated(engine: Engine, encoded: Sequence[Any], stop: threading.Event) -> list[Any]:
    """What the engine gave for each request, all at once, or why it gave nothing."""
    tasks = [asyncio.ensure_future(_one(engine, one)) for one in encoded]
    while not all(task.done() for task in tasks):
        await asyncio.wait(tasks, timeout=_POLL)
        if stop.is_set():
            for task in tasks:
                task.cancel()
    return await asyncio.gather(*tasks, return_exceptions=stop.is_set())


async def _one(engine: Engine, encoded: Any) -> Any:
    if isinstance(encoded, RowFailure):
        return encoded
    try:
        return await engine.generate(encoded)
    except EngineDeadError as error:
        return died(error)
