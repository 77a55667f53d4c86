# SPDX-License-Identifier: Apache-2.0
"""What a replica works with: engine, reader, threads and reports; and how it makes parts of answers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from airflow_provider_raybatch.contract.submission import Submission
from airflow_provider_raybatch.job.engine.base import Engine
from airflow_provider_raybatch.job.input.chunk_rows import portions
from airflow_provider_raybatch.job.input.reader import Reader
from airflow_provider_raybatch.job.monitor.metrics import Metrics
from airflow_provider_raybatch.job.monitor.replica_progress import ReplicaProgress, Reporter
from airflow_provider_raybatch.job.parts import part as parts
from airflow_provider_raybatch.job.planning.plan import Plan
from airflow_provider_raybatch.job.replica.crash_log import CrashLog
from airflow_provider_raybatch.job.replica.inflight import InflightRequests, Row
from airflow_provider_raybatch.job.replica.left_parts import stem
from airflow_provider_raybatch.job.replica.request_builder import RequestBuilder
from airflow_provider_raybatch.job.row import Response, RowFailure
from airflow_provider_raybatch.job.work import Job

T = TypeVar("T")

_THREADS = 8
_TOKENIZER_THREADS = 2
"""More would only contend for Python's lock, and vLLM copies its tokenizer for each that uses it at the same
time: a quarter of a second for a vocabulary of 128,000, in which no request moves."""


class Workplace:
    """What a replica makes at its start, and its worker works with.

    :ivar job: with `plan`, `reader` and `asker`, as soon as the job is known.
    :ivar coordinator: handle of the coordinator.
    :ivar process: name of the replica's process.
    :ivar inflight: rows in the engine, while there is a worker.
    :ivar cpu_before: CPU seconds of the process when its engine was ready.
    """

    job: Job
    plan: Plan
    reader: Reader
    asker: RequestBuilder
    engine: Engine
    begun: CrashLog
    reporter: Reporter
    cpu_before: float

    def __init__(self, submission: Submission | None, coordinator: Any, report: ReplicaProgress) -> None:
        self.coordinator = coordinator
        self.process = report.replica
        self.report = report
        self.draining = threading.Event()
        self.asked_to_ask = threading.Event()
        self.inflight: InflightRequests | None = None
        self._metrics = Metrics(submission, self.process)
        self._parts = 0
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="raybatch")
        self._tokenizers = ThreadPoolExecutor(_TOKENIZER_THREADS, thread_name_prefix="raybatch-tokenizer")

    async def let_rest(self) -> None:
        """No more is asked of the engine, and all that it answered is written."""

    def count(self) -> None:
        """Bring Ray's metrics up to date."""
        inflight = self.inflight
        self._metrics.update(self.report, len(inflight.inside) if inflight else 0)

    def write(self, rows: Sequence[Row]) -> list[parts.Part]:
        """One part, unless its rows are very large or of several types."""
        task = self.job.task
        ordered = sorted(rows, key=lambda row: row.position)
        written = []
        for places, table in portions([(row.rows, row.place) for row in ordered]):
            self._parts += 1
            outcomes = [
                ordered[place].asked.outcome(ordered[place].position, ordered[place].result)
                for place in places
            ]
            name = stem(self.job.part_folder, self.process, f"{self._parts:06d}")
            written += parts.write_all(self.job.folder, name, table, outcomes, task)
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
