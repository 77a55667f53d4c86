# SPDX-License-Identifier: Apache-2.0
"""A replica: one engine in a Ray Data actor. The way of a row, from source to part, in one place.

Everything but the engine runs in threads, many chunks overlap, and nothing but a chunk's description and a
few counts passes through Ray's object store, so the engine never waits for a hop.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from typing import Any, TypeVar

import pyarrow as pa

from airflow_provider_raybatch.contract.secrets import AwsCredentials
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.job import parts
from airflow_provider_raybatch.job.board import ReplicaReport, Reporter
from airflow_provider_raybatch.job.engine.base import EngineDeadError, Response, failures_apart
from airflow_provider_raybatch.job.engine.opening import open_engine
from airflow_provider_raybatch.job.gpu import GpuMeter
from airflow_provider_raybatch.job.json_check import checked
from airflow_provider_raybatch.job.request import Request, RowFailure, needed_columns, render_all, renderer
from airflow_provider_raybatch.job.source.chunks import Chunk
from airflow_provider_raybatch.job.source.listing import Listing
from airflow_provider_raybatch.job.source.reading import BadRow, Reader
from airflow_provider_raybatch.job.storage import Folder

T = TypeVar("T")

_THREADS = 8
_ENGINE_DIED = 70
"""Exit status of a replica whose engine died (EX_SOFTWARE): Ray restarts the actor and repeats its chunks."""


@dataclass(frozen=True)
class WorkItem:
    """A chunk to do. `skip` are positions in the chunk that an earlier submission has done."""

    number: int
    chunk: Chunk
    skip: tuple[int, ...] = ()

    def as_json(self) -> str:
        """For the Ray Dataset of work."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, document: str) -> WorkItem:
        """The reverse of :meth:`as_json`."""
        fields = json.loads(document)
        return cls(fields["number"], Chunk(**fields["chunk"]), tuple(fields["skip"]))


@dataclass
class Done:
    """What a work item became: its part, where the seconds went, and what its replica had done by then."""

    part: parts.Part
    seconds: dict[str, float]
    report: ReplicaReport

    def as_json(self) -> str:
        """For the way back to the driver."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, document: str) -> Done:
        """The reverse of :meth:`as_json`."""
        fields = json.loads(document)
        return cls(parts.Part(**fields["part"]), fields["seconds"], ReplicaReport(**fields["report"]))


@dataclass(frozen=True)
class Job:
    """What every replica of a job is given.

    :param folder: the destination.
    :param part_folder: where this submission keeps its parts, relative to `folder`.
    """

    spec: BatchInferenceSpec
    listing: Listing
    folder: Folder
    part_folder: str
    credentials: AwsCredentials | None = None
    environment: dict[str, str] = field(default_factory=dict)


class Stopwatch:
    """Adds up seconds by stage."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def add(self, stage: str, start: float) -> None:
        """Count the time since `start` (``time.monotonic``)."""
        self.seconds[stage] = round(self.seconds.get(stage, 0.0) + time.monotonic() - start, 4)


class Replica:
    """The class that ``Dataset.map_batches`` runs as an actor.

    :param board: handle of the :class:`~airflow_provider_raybatch.job.board.Board` actor.
    """

    def __init__(self, job: Job, board: Any) -> None:
        began = time.time()
        os.environ.update(job.environment)
        self._job = job
        self._report = ReplicaReport(replica=_identity(), node=_node())
        self._gpu: GpuMeter | None = None
        self._reporter = Reporter(board, self._report, self._measure)
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="raybatch")
        with self._reporter.telling():
            self._reader = Reader(job.listing, needed_columns(job.spec), job.credentials)
            self._render = renderer(job.spec)
            self._engine = open_engine(job.spec)
        self._gpu = GpuMeter()
        info = self._engine.info
        self._report.effective_sampling = info.effective_sampling
        self._report.sizes, self._report.versions = info.sizes, info.versions
        self._report.startup_seconds = round(time.time() - began, 2)
        self._report.state = "ready"
        self._reporter.send()

    def _measure(self) -> None:
        if self._gpu is not None:
            self._gpu.sample()
            self._report.gpu_utilization = self._gpu.mean

    async def __call__(self, batch: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        """Do work items; each gives one row ``{"done": json}``."""
        for document in batch["item"]:
            with self._reporter.telling():
                try:
                    done = await self._do(WorkItem.from_json(str(document)))
                except EngineDeadError:
                    # Nothing in this process brings the engine back, and its memory is freed only with it.
                    os._exit(_ENGINE_DIED)
            yield {"done": [done.as_json()]}

    async def _do(self, item: WorkItem) -> Done:
        watch = Stopwatch()
        start = time.monotonic()
        rows = await self._thread(self._reader.read, item.chunk)
        watch.add("read", start)
        skipped = set(item.skip)
        positions = [position for position in range(len(rows)) if position not in skipped]
        chosen = [rows.rows[position] for position in positions]
        start = time.monotonic()
        requests = await self._thread(render_all, self._render, chosen)
        watch.add("render", start)
        results = await self._answer(requests, watch)
        outcomes = [
            parts.Outcome(item.chunk.ordinal + position, result, _kept_request(result, request, row))
            for position, result, request, row in zip(positions, results, requests, chosen, strict=True)
        ]
        start = time.monotonic()
        part = await self._thread(self._write, item, rows.columns, positions, outcomes)
        watch.add("write", start)
        return Done(part, watch.seconds, dataclasses.replace(self._report))

    async def _answer(
        self, requests: list[Request | RowFailure], watch: Stopwatch
    ) -> list[Response | RowFailure]:
        results: list[Any] = list(requests)
        _, asked = failures_apart(requests)
        questions = [request for request in requests if isinstance(request, Request)]
        start = time.monotonic()
        encoded = await self._thread(self._engine.encode, questions)
        watch.add("tokenize", start)
        unfit, fit = failures_apart(encoded)
        for place, failure in unfit.items():
            results[asked[place]] = failure
        start = time.monotonic()
        self._report.first_request = self._report.first_request or time.time()
        raw = await asyncio.gather(*(self._generate(encoded[place]) for place in fit))
        watch.add("generate", start)
        start = time.monotonic()
        failed, good = failures_apart(raw)
        responses = await self._thread(self._engine.decode, [raw[place] for place in good])
        watch.add("detokenize", start)
        for place, failure in failed.items():
            results[asked[fit[place]]] = failure
        for place, response in zip(good, responses, strict=True):
            sampling = questions[fit[place]].sampling
            results[asked[fit[place]]] = checked(response, self._job.spec, sampling)
            self._report.input_tokens += response.input_tokens
            self._report.output_tokens += sum(completion.output_tokens for completion in response.completions)
        self._report.errors += sum(isinstance(result, RowFailure) for result in results)
        self._report.rows += len(results) - len(fit)  # the others were counted as they finished
        return results

    async def _generate(self, encoded: Any) -> Any:
        raw = await self._engine.generate(encoded)
        self._report.rows += 1
        return raw

    def _write(
        self,
        item: WorkItem,
        columns: Callable[[], pa.Table],
        positions: list[int],
        outcomes: list[parts.Outcome],
    ) -> parts.Part:
        table = columns().take(pa.array(positions, pa.int64()))
        path = f"{self._job.part_folder}/{item.number:08d}.parquet"
        return parts.write(self._job.folder, path, table, outcomes, self._job.spec.keeps_completions)

    async def _thread(self, function: Callable[..., T], *args: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, function, *args)


def _kept_request(result: Response | RowFailure, request: Request | RowFailure, row: Any) -> str:
    if isinstance(result, Response):
        return ""
    if isinstance(row, BadRow):
        return row.text
    return request.as_json() if isinstance(request, Request) else ""


def _identity() -> str:
    import ray

    return f"{ray.get_runtime_context().get_actor_id() or 'local'}-{os.getpid()}"


def _node() -> str:
    import ray

    return str(ray.get_runtime_context().get_node_id())
