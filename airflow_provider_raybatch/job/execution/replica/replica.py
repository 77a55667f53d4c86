# SPDX-License-Identifier: Apache-2.0
"""A replica: one engine in a Ray Data actor, from its start to its end.

Everything but the engine runs in threads, so the engine never waits.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import ray

from airflow_provider_raybatch.contract.failures import FailureClass, RaybatchError
from airflow_provider_raybatch.job.control.private_package import set_environment
from airflow_provider_raybatch.job.engine.opening import open_engine
from airflow_provider_raybatch.job.execution.calls import GoneError
from airflow_provider_raybatch.job.execution.coordinator import stem
from airflow_provider_raybatch.job.execution.replica import loading
from airflow_provider_raybatch.job.execution.replica.asking import Asker, read_columns
from airflow_provider_raybatch.job.execution.replica.begun import BegunRows, left_by_the_last, path_of
from airflow_provider_raybatch.job.execution.replica.flight import Flight, Row
from airflow_provider_raybatch.job.execution.replica.gpu import GpuMeter
from airflow_provider_raybatch.job.execution.replica.shift import ENGINE_DIED, Shift
from airflow_provider_raybatch.job.input.chunk_rows import portions
from airflow_provider_raybatch.job.input.reader import Reader
from airflow_provider_raybatch.job.monitor.board import ReplicaReport, Reporter
from airflow_provider_raybatch.job.monitor.metrics import Metrics
from airflow_provider_raybatch.job.parts import part as parts
from airflow_provider_raybatch.job.planning.plan import Plan
from airflow_provider_raybatch.job.row import Response, RowFailure
from airflow_provider_raybatch.job.work import Job

T = TypeVar("T")

_THREADS = 8
_TOKENIZER_THREADS = 2
"""More would only contend for Python's lock, and vLLM copies its tokenizer for each that uses it at the same
time: a quarter of a second for a vocabulary of 128,000, in which no request moves."""


class Replica:
    """The class that ``Dataset.map_batches`` runs as an actor.

    :param board: handle of the :class:`~airflow_provider_raybatch.job.execution.coordinator.Coordinator`.
    :raises RaybatchError: the engine can't be started, or dies each time before it has finished a row.
    """

    def __init__(self, job: Job, plan: Plan, board: Any) -> None:
        began = time.time()
        set_environment(job.environment)
        self.job = job
        self.plan = plan
        self.board = board
        self._actor = _actor()
        # In another container, process numbers begin anew.
        self.process = f"{self._actor}-{os.getpid()}-{secrets.token_hex(4)}"
        self.report = ReplicaReport(replica=self.process, node=_node())
        self._metrics = Metrics(job.spec.submission, self.process)
        self._gpu: GpuMeter | None = None
        self.draining = threading.Event()
        self.asked_to_ask = threading.Event()
        self.flight: Flight | None = None
        self._parts = 0
        self._has_left = False
        self.reporter = Reporter(board, self.report, self._measure, self.draining.set, self.asked_to_ask.set)
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="raybatch")
        self._tokenizers = ThreadPoolExecutor(_TOKENIZER_THREADS, thread_name_prefix="raybatch-tokenizer")
        with self.reporter.telling():
            self._check_starts()
            if not self._is_needed():
                self._leave()
                return
            self.reader = Reader(job.listing, read_columns(job.spec), job.credentials)
            self.asker = Asker(job.spec, job.task.renderer(), job.keyer)
            self.engine = open_engine(job.spec, plan.spans_nodes)
        self._gpu = GpuMeter()
        board.describe.remote(self.engine.info)
        self.report.startup_seconds = round(time.time() - began, 2)
        self.cpu_before = time.process_time()
        self.report.state = "ready"
        self.reporter.send()

    def _check_starts(self) -> None:
        path = path_of(self.job.folder.uri, self._actor)
        begun = left_by_the_last(path)
        self.begun = BegunRows(path)
        in_vain = ray.get(self.board.start.remote(self._actor, self.process, begun))
        most = self.job.spec.max_restarts
        if in_vain > most:
            raise RaybatchError(
                f"max_restarts: the engine died again and again without finishing a row, more often than the "
                f"{most} times allowed; its log on the cluster says why.",
                FailureClass.ENGINE_DEAD,
            )

    def _is_needed(self) -> bool:
        return bool(ray.get(self.board.is_needed.remote(self.process, _name())))

    def _leave(self) -> None:
        """Take no more part: its GPUs are free, or will be when Ray Data ends the actor without a ticket."""
        self._has_left = True
        self.begun.remove()
        self.report.state = "ended"
        self.reporter.send()

    def _measure(self) -> None:
        if self._has_left:
            return
        if self.report.state == "starting":
            self.report.loaded = loading.steps()
        else:
            self.report.tokens_in_flight = self.engine.tokens_in_flight()
        if self._gpu is not None:
            self._gpu.sample()
            self.report.gpu_utilization = self._gpu.mean
        if self.draining.is_set() and self.flight is None:
            self.report.state = "drained"
        self.count()

    def count(self) -> None:
        """Bring Ray's metrics up to date."""
        flight = self.flight
        self._metrics.update(self.report, len(flight.inside) if flight else 0)

    async def __call__(self, batch: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        """Work until every row of the input is written; a ticket each for whoever comes."""
        for number in batch["ticket"]:
            if not self._has_left:
                with self.reporter.telling():
                    await self._work()
            yield {"ticket": [number]}

    async def _work(self) -> None:
        shift = Shift(self)
        try:
            await shift.work()
        except GoneError:
            os._exit(ENGINE_DIED)  # others have its rows: begin anew
        if shift.leaves:
            await self.thread(self.engine.close)
            self._leave()

    def write(self, rows: Sequence[Row]) -> list[parts.Part]:
        """One part, unless its rows are very large or of several types."""
        task = self.job.task
        ordered = sorted(rows, key=lambda row: row.ordinal)
        written = []
        for places, table in portions([(row.rows, row.place) for row in ordered]):
            self._parts += 1
            outcomes = [
                ordered[place].asked.outcome(ordered[place].ordinal, ordered[place].result)
                for place in places
            ]
            name = stem(self.job.part_folder, self.process, f"{self._parts:06d}")
            written.append(parts.write(self.job.folder, name, table, outcomes, task))
        return written

    def decode(self, rows: Sequence[Row]) -> None:
        """Make results of what the engine gave."""
        raw = [row for row in rows if not isinstance(row.result, RowFailure)]
        for row, response in zip(raw, self.engine.decode([row.result for row in raw]), strict=True):
            row.result = self._checked(row, response)

    def _checked(self, row: Row, response: Response) -> Response | RowFailure:
        return self.job.task.check(response, row.asked.request.sampling)  # type: ignore[union-attr]

    async def thread(self, function: Callable[..., T], *args: Any) -> T:
        """Run a function beside the event loop."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, function, *args)

    async def tokenizer_thread(self, function: Callable[..., T], *args: Any) -> T:
        """Run a function of the engine's tokenizer beside the event loop."""
        return await asyncio.get_running_loop().run_in_executor(self._tokenizers, function, *args)


def _actor() -> str:
    return str(ray.get_runtime_context().get_actor_id() or "local")


def _name() -> str:
    return str(ray.get_runtime_context().get_actor_name() or "")


def _node() -> str:
    return str(ray.get_runtime_context().get_node_id())
