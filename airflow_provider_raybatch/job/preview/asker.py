# SPDX-License-Identifier: Apache-2.0
"""Leases an engine as a replica does, asks it for some rows in all steps of a job, and gives it back.

The rows take the way that they take in a replica, but no part is written.
"""

from __future__ import annotations

import asyncio
import secrets
import threading
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import ray

from airflow_provider_raybatch.contract.preview import MOST_OF_STEP, RowAnswer
from airflow_provider_raybatch.job.control.private_package import set_environment
from airflow_provider_raybatch.job.engine.base import Engine, EngineDeadError, TogetherEngine
from airflow_provider_raybatch.job.engine_process.proxy import open_engine
from airflow_provider_raybatch.job.media.allowed import image_access
from airflow_provider_raybatch.job.media.load import load
from airflow_provider_raybatch.job.monitor.replica_progress import ReplicaProgress, Reporter
from airflow_provider_raybatch.job.parts.part import Part, outputs_of
from airflow_provider_raybatch.job.preview.row_answer import decoded, died, row_answer, shown_messages
from airflow_provider_raybatch.job.preview.tokens import Picked
from airflow_provider_raybatch.job.replica.inflight import Row
from airflow_provider_raybatch.job.replica.process_parts import PartWriter, WrittenPart
from airflow_provider_raybatch.job.replica.row_asker import Read, RowAsker, steps_of
from airflow_provider_raybatch.job.row import Request, Response, RowFailure
from airflow_provider_raybatch.job.steps.columns import reader_of
from airflow_provider_raybatch.job.warm_engines.lease import Holder
from airflow_provider_raybatch.job.warm_engines.source import EngineAccess, EngineSource
from airflow_provider_raybatch.job.work import CheckedModel, Job

_POLL = 0.1
_REPORT_SECONDS = 30.0
_MOST_MESSAGES = 16
_NO_PART = Part("", 0, 0, 0, 0, 0)
_Shown = tuple[int, RowAnswer]
"""An answer, and the number of its step."""


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
    questions = await asyncio.to_thread(PreviewedQuestions, asking.job, engine)
    rows = await asyncio.to_thread(questions.begin, asking.read)
    while rows and not stop.is_set():
        requests = questions.requests(rows)
        encoded = await asyncio.to_thread(engine.encode, requests)
        encoded = await asyncio.to_thread(_with_images, asking.job, engine, requests, encoded, stop)
        if stop.is_set():
            return []  # some requests may lack their images
        generated = await _generated(engine, encoded, stop)
        rows = [replace(row, result=made) for row, made in zip(rows, generated, strict=True)]
        if not stop.is_set():
            rows = await asyncio.to_thread(questions.next, rows)
    return [] if stop.is_set() else questions.answers()


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


class PreviewedQuestions:
    """What the steps of a job answer, and what they ask next."""

    def __init__(self, job: Job, engine: Engine) -> None:
        self._shown: list[_Shown] = []
        self._writers = [_ShownAnswers(step, engine, self._shown) for step in job.questions]
        works = zip(steps_of(job, engine, ""), self._writers, strict=True)
        self._asker = RowAsker(job, [replace(work, writer=writer) for work, writer in works])

    def begin(self, read: Sequence[Read]) -> list[Row]:
        """The rows that are asked first."""
        return self._asked(self._asker.prepare([ordinal for _, _, ordinal in read], read, {}, None))

    def requests(self, rows: Sequence[Row]) -> list[Request]:
        """What the engine is asked for rows."""
        return self._asker.requests(rows)

    def next(self, rows: Sequence[Row]) -> list[Row]:
        """The rows that later steps ask.

        :param rows: that have been asked; each `result` is what the engine gave, or why it gave nothing.
        """
        self._asker.decode(rows)
        return self._asked(self._asker.write(rows, {}).next)

    def answers(self) -> list[RowAnswer]:
        """All of them, by rows, and of a row by steps."""
        return [one for _, one in sorted(self._shown, key=lambda shown: (shown[1].ordinal, shown[0]))]

    def _asked(self, rows: Sequence[Row]) -> list[Row]:
        """Those that the engine is asked for."""
        found = []
        for row in rows:
            request = row.prepared.request
            if row.result is None and isinstance(request, Request):
                found.append(row)
            elif isinstance(request, RowFailure) and row.result is None:
                # Rows that can't be rendered are not among them: an image has failed, or an earlier answer.
                self._writers[row.step].show(row, request, request)
        return found


class _ShownAnswers(PartWriter):
    """Keeps the answers of a step for people, and no part."""

    def __init__(self, step: Job, engine: Engine, shown: list[_Shown]) -> None:
        super().__init__(step, engine, "")
        self._shown = shown

    def decode(self, rows: Sequence[Row]) -> None:
        """See :class:`PartWriter`."""
        task = self._job.task
        for row, made in zip(rows, decoded(self._engine, [row.result for row in rows]), strict=True):
            request = row.prepared.request
            checked = made
            if isinstance(made, Response) and isinstance(request, Request):
                checked = task.check(made, request.sampling)
            row.result = checked
            self.show(row, made, checked)

    def show(self, row: Row, made: Response | RowFailure, checked: Response | RowFailure) -> None:
        """Keep what became of a row.

        :param made: as it came, and `checked` what a job would make of it.
        """
        answer = row_answer(self._job.task, row.position, made, checked, self._names[row.step])
        request = row.prepared.request
        if row.step and isinstance(request, Request):
            messages = shown_messages(request, MOST_OF_STEP, _MOST_MESSAGES)
            answer = answer.model_copy(update={"messages": messages})
        self._shown.append((row.step, answer))

    def write(self, rows: Sequence[Row]) -> list[WrittenPart]:
        """No part."""
        outputs = outputs_of(self._job.task, [row.result for row in rows])
        return [WrittenPart(_NO_PART, rows, outputs)] if rows else []


def read_rows(job: Job, picked: Picked, ordinals: Collection[int]) -> list[Read]:
    """The rows of some ordinals, with what all steps need; others may not see the files of this node.

    :param picked: chunks and positions that have them.
    """
    reader = reader_of(job, whole=False)
    found: list[Read] = []
    for chunk, positions in picked:
        at = [position for position in positions if chunk.ordinal + position in ordinals]
        rows = reader.rows(chunk, reader.content(chunk), at)
        found += [(rows, place, chunk.ordinal + position) for place, position in enumerate(at)]
    return found
