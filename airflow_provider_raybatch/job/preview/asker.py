# SPDX-License-Identifier: Apache-2.0
"""Leases an engine as a replica does, asks it for some rows, and gives it back. Writes nothing."""

from __future__ import annotations

import asyncio
import json
import secrets
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

import pyarrow as pa
import ray

from airflow_provider_raybatch.contract.preview import MOST_CHARACTERS, RowAnswer, ShownCompletion
from airflow_provider_raybatch.contract.shown_uri import without_queries
from airflow_provider_raybatch.contract.text import clean, cut_to
from airflow_provider_raybatch.job.control.private_package import set_environment
from airflow_provider_raybatch.job.engine.base import Engine, EngineDeadError
from airflow_provider_raybatch.job.engine_process.opening import open_engine
from airflow_provider_raybatch.job.media.allowed import image_access
from airflow_provider_raybatch.job.media.load import load
from airflow_provider_raybatch.job.monitor.replica_progress import ReplicaProgress, Reporter
from airflow_provider_raybatch.job.row import Request, Response, RowFailure
from airflow_provider_raybatch.job.tasks.base import Task
from airflow_provider_raybatch.job.warm_engines.lease import Holder
from airflow_provider_raybatch.job.warm_engines.source import EngineAccess, EngineSource
from airflow_provider_raybatch.job.work import CheckedModel, Job

_POLL = 0.1
_REPORT_SECONDS = 30.0
_MOST_COMPLETIONS = 16
_LONGEST_COLUMNS = 4_000
_NUMBERS = 4
_SHOWN = frozenset({
    "response",
    "finish_reason",
    "input_tokens",
    "cached_tokens",
    "output_tokens",
    "truncated_prompt_tokens",
    "completions",
})
"""Columns that a preview shows in its own way."""


@dataclass(frozen=True)
class Asking:
    """What is asked. Picklable.

    :param model: what the engine loads.
    :param source: of the engine.
    :param requests: by ordinal.
    """

    job: Job
    model: CheckedModel
    source: EngineSource
    requests: Mapping[int, Request]


def answers(asking: Asking, coordinator: Any) -> list[RowAnswer]:
    """Ask the engine; called in a process of its own.

    :param coordinator: handle of a job's coordinator, which has no rows.
    :returns: an answer for each request; none if the coordinator drains.
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
        report.startup_seconds, report.state = time.time() - report.started, "ready"
        return asyncio.run(_answered(asking, engine, access, stop))
    finally:
        report.state = "ended"
        ray.get(reporter.send(), timeout=_REPORT_SECONDS)


def _node() -> str:
    return str(ray.get_runtime_context().get_node_id())


async def _answered(
    asking: Asking, engine: Engine, access: EngineAccess, stop: threading.Event
) -> list[RowAnswer]:
    requests = list(asking.requests.values())
    try:
        await engine.prepare()
        encoded = await asyncio.to_thread(engine.encode, requests)
        encoded = await asyncio.to_thread(_with_images, asking, engine, encoded, stop)
        if stop.is_set():
            return []  # some requests may lack their images
        made = await _generated(engine, encoded, stop)
        if stop.is_set():
            return []
        responses = await asyncio.to_thread(_decoded, engine, made)
    finally:
        await access.give_back(lambda: asyncio.to_thread(engine.close))
        await asyncio.to_thread(engine.close)
    task = asking.job.task
    return [
        row_answer(task, ordinal, request, response)
        for (ordinal, request), response in zip(asking.requests.items(), responses, strict=True)
    ]


def _with_images(asking: Asking, engine: Engine, encoded: Sequence[Any], stop: threading.Event) -> list[Any]:
    """The requests with their images, loaded in this process since they are few; or why they get none.

    :raises StorageError: a store, a disk or a host fails.
    """
    job, made = asking.job, list(encoded)
    access = image_access(job.spec, job.listing, job.credentials)
    for place, request in enumerate(asking.requests.values()):
        if not request.images or isinstance(made[place], RowFailure) or stop.is_set():
            continue
        loaded = load(request.images, access)
        try:
            made[place] = (
                loaded if isinstance(loaded, RowFailure) else engine.attach(made[place], loaded.pixels)
            )
        except EngineDeadError as error:
            made[place] = _died(error)
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
        return _died(error)


def _decoded(engine: Engine, made: Sequence[Any]) -> list[Response | RowFailure]:
    raw = [one for one in made if not isinstance(one, RowFailure)]
    try:
        responses = iter(engine.decode(raw))
    except EngineDeadError as error:
        return [one if isinstance(one, RowFailure) else _died(error) for one in made]
    return [one if isinstance(one, RowFailure) else next(responses) for one in made]


def _died(error: EngineDeadError) -> RowFailure:
    return RowFailure("engine", f"the engine died while it had this row, perhaps of another one: {error}")


def row_answer(task: Task, ordinal: int, request: Request, made: Response | RowFailure) -> RowAnswer:
    """What a preview shows of an answer, checked as a job would check it."""
    checked = made if isinstance(made, RowFailure) else task.check(made, request.sampling)
    failure = None
    if isinstance(checked, RowFailure):
        failure = f"{checked.step}: {without_queries(checked.reason)}"
    return RowAnswer(
        ordinal=ordinal,
        completions=() if isinstance(made, RowFailure) else _completions(made),
        input_tokens=made.input_tokens,
        columns="" if isinstance(made, RowFailure) or failure is not None else _columns(task, made),
        failure=failure,
    )


def _completions(response: Response) -> tuple[ShownCompletion, ...]:
    """The first ones, until the room for a row is used up."""
    shown, room = [], MOST_CHARACTERS
    for one in response.completions[:_MOST_COMPLETIONS]:
        text = cut_to(max(100, room), clean(one.text))
        room -= len(text)
        shown.append(
            ShownCompletion(text=text, finish_reason=one.finish_reason, output_tokens=one.output_tokens)
        )
    return tuple(shown)


def _columns(task: Task, response: Response) -> str:
    """What else the dataset would have of a response, by its columns, as JSON."""
    outputs = task.outputs([response])
    known = task.measured([pa.chunked_array([outputs])])
    outputs, _ = known.split(outputs)  # of several rows the first is shown
    columns = known.published(pa.chunked_array([outputs]))
    found = {
        task.names[field.name]: column[0].as_py()
        for field, column in zip(known.published_type, columns, strict=True)
        if field.name not in _SHOWN
    }
    if task.derived:
        table = task.with_derived(pa.table({"ok": [True], "output": outputs}))
        found |= dict(zip(task.derived, table["derived"][0].as_py().values(), strict=True))
    short = {name: _short(one) for name, one in found.items()}
    made = json.dumps(short, ensure_ascii=False, default=str) if short else ""
    return cut_to(_LONGEST_COLUMNS, clean(made))


def _short(value: Any) -> Any:
    """`value`; of a vector its first numbers, and how many there are."""
    if isinstance(value, list) and len(value) > 2 * _NUMBERS and isinstance(value[0], Real):
        return [*(round(float(one), 4) for one in value[:_NUMBERS]), f"{len(value):,} numbers in all"]
    return value
