# SPDX-License-Identifier: Apache-2.0
"""What a replica's process has: job, engine, threads and reports."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from airflow_provider_raybatch.contract.submission import Submission
from airflow_provider_raybatch.job.engine.base import Engine
from airflow_provider_raybatch.job.input.reader import Reader
from airflow_provider_raybatch.job.monitor.metrics import Metrics
from airflow_provider_raybatch.job.monitor.replica_progress import ReplicaProgress, Reporter
from airflow_provider_raybatch.job.planning.plan import Plan
from airflow_provider_raybatch.job.replica.crash_log import CrashLog
from airflow_provider_raybatch.job.replica.inflight import InflightRequests
from airflow_provider_raybatch.job.replica.row_asker import RowAsker, StepWork
from airflow_provider_raybatch.job.warm_engines.source import EngineAccess
from airflow_provider_raybatch.job.work import Job

T = TypeVar("T")

_THREADS = 8
_TOKENIZER_THREADS = 2
"""More would only contend for Python's lock, and vLLM copies its tokenizer for each thread: a quarter of a
second for a vocabulary of 128,000, in which no request moves."""


class ReplicaProcess:
    """What a replica makes at its start, and its worker works with.

    :ivar job: with `plan`, `reader`, `questions` and `asker`, as soon as the job is known.
    :ivar coordinator: handle of the coordinator.
    :ivar process: name of the process.
    :ivar inflight: rows in the engine, while there is a worker.
    :ivar cpu_before: CPU seconds of the process when its engine was ready.
    """

    job: Job
    plan: Plan
    reader: Reader
    questions: Sequence[StepWork]
    asker: RowAsker
    engine: Engine
    begun: CrashLog
    reporter: Reporter
    cpu_before: float
    _access: EngineAccess

    def __init__(self, submission: Submission | None, coordinator: Any, report: ReplicaProgress) -> None:
        self.coordinator = coordinator
        self.process = report.replica
        self.report = report
        self.draining = threading.Event()
        self.asked_to_ask = threading.Event()
        self.inflight: InflightRequests | None = None
        self._metrics = Metrics(submission, self.process)
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="raybatch")
        self._tokenizers = ThreadPoolExecutor(_TOKENIZER_THREADS, thread_name_prefix="raybatch-tokenizer")

    async def give_back_engine(self) -> None:
        """Give a warm engine back, before the job can end. All that it answered is written."""
        await self._access.give_back(lambda: self.thread(self.engine.close))

    def count(self) -> None:
        """Bring the report and Ray's metrics up to date."""
        self.report.rows_in_flight = len(self.inflight.inside) if self.inflight else 0
        self._metrics.update(self.report, self.report.rows_in_flight)

    async def thread(self, function: Callable[..., T], *args: Any) -> T:
        """Run a function beside the event loop."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, function, *args)

    async def tokenizer_thread(self, function: Callable[..., T], *args: Any) -> T:
        """Run a function of the engine's tokenizer beside the event loop."""
        return await asyncio.get_running_loop().run_in_executor(self._tokenizers, function, *args)
