# SPDX-License-Identifier: Apache-2.0
"""A replica: one engine in a Ray Data actor. The way of a row, from source to part, in one place.

Everything but the engine runs in threads, many chunks overlap, and nothing but a chunk's description and a
few counts passes through Ray's object store, so the engine never waits for a hop.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import secrets
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from airflow_provider_raybatch.contract.failures import FailureClass, RaybatchError
from airflow_provider_raybatch.job.control.private_package import set_environment
from airflow_provider_raybatch.job.engine.base import EngineDeadError
from airflow_provider_raybatch.job.engine.opening import open_engine
from airflow_provider_raybatch.job.execution.replica import loading
from airflow_provider_raybatch.job.execution.replica.answers import Answers, Result
from airflow_provider_raybatch.job.execution.replica.asking import Asked, Asker, read_columns
from airflow_provider_raybatch.job.execution.replica.gate import Gate
from airflow_provider_raybatch.job.execution.replica.gpu import GpuMeter
from airflow_provider_raybatch.job.input.reader import ChunkRows, Reader
from airflow_provider_raybatch.job.monitor.board import ReplicaReport, Reporter
from airflow_provider_raybatch.job.monitor.poison_rows import Suspicion, narrowed, next_group, poison
from airflow_provider_raybatch.job.parts import part as parts
from airflow_provider_raybatch.job.row import Request, RowFailure
from airflow_provider_raybatch.job.work import Done, Job, Stopwatch, WorkItem

T = TypeVar("T")

_THREADS = 8
_TOKENIZER_THREADS = 2
"""More would only contend for Python's lock, and vLLM copies its tokenizer for each that uses it at the same
time: a quarter of a second for a vocabulary of 128,000, in which no request moves."""
_ENGINE_DIED = 70
"""Exit status of a replica whose engine died (EX_SOFTWARE): Ray restarts the actor and repeats its chunks."""
_LAST_WORDS = 5.0
"""Seconds in which the chunks of a dead engine write what they have."""
_KILLER = RowFailure("engine", "the engine's process dies of this row, and did so with this row alone in it")


@dataclass(frozen=True)
class _Chunk:
    """A chunk in work.

    :param asked: the rows to be answered, by position.
    """

    item: WorkItem
    rows: ChunkRows
    asked: dict[int, Asked]


class Replica:
    """The class that ``Dataset.map_batches`` runs as an actor.

    :param board: handle of the :class:`~airflow_provider_raybatch.job.monitor.board.Board` actor.
    :raises RaybatchError: the engine can't be started, or dies each time before it has finished a row.
    """

    def __init__(self, job: Job, board: Any) -> None:
        began = time.time()
        set_environment(job.environment)
        self._job = job
        self._board = board
        self._actor = _actor()
        # In another container, process numbers begin anew.
        self._process = f"{self._actor}-{os.getpid()}-{secrets.token_hex(4)}"
        self._report = ReplicaReport(replica=self._process, node=_node())
        self._gpu: GpuMeter | None = None
        self._draining = threading.Event()
        self._gate = Gate()
        self._asking = self._dying = 0
        self._reporter = Reporter(board, self._report, self._measure, self._draining.set)
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="raybatch")
        self._tokenizers = ThreadPoolExecutor(_TOKENIZER_THREADS, thread_name_prefix="raybatch-tokenizer")
        with self._reporter.telling():
            self._check_starts()
            self._reader = Reader(job.listing, read_columns(job.spec), job.credentials)
            self._asker = Asker(job.spec, job.task.renderer(), job.keyer)
            self._engine = open_engine(job.spec)
        self._answers = Answers(
            self._engine, job.spec, self._report, self._tokenizer_thread, self._draining.is_set
        )
        self._gpu = GpuMeter()
        board.describe.remote(self._engine.info)
        self._report.startup_seconds = round(time.time() - began, 2)
        self._cpu_before = time.process_time()
        self._report.state = "ready"
        self._reporter.send()

    def _check_starts(self) -> None:
        import ray

        in_vain = ray.get(self._board.start.remote(self._actor, self._process))
        most = self._job.spec.max_restarts
        if in_vain > most:
            raise RaybatchError(
                f"max_restarts: the engine died again and again without finishing a row, more often than the "
                f"{most} times allowed; its log on the cluster says why.",
                FailureClass.ENGINE_DEAD,
            )

    def _measure(self) -> None:
        if self._report.state == "starting":
            self._report.loaded = loading.steps()
        else:
            self._report.tokens_in_flight = self._engine.tokens_in_flight()
        if self._gpu is not None:
            self._gpu.sample()
            self._report.gpu_utilization = self._gpu.mean
        if self._draining.is_set() and not self._asking:
            self._report.state = "drained"

    async def __call__(self, batch: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        """Do work items; each gives one row ``{"done": json}``."""
        for document in batch["item"]:
            with self._reporter.telling():
                done = await self._do(WorkItem.from_json(str(document)))
            yield {"done": [done.as_json()]}

    async def _die(self, error: EngineDeadError) -> None:
        """End this process, from which nothing brings the engine back, and which holds its memory."""
        self._dying += 1
        if not error.killed:
            with contextlib.suppress(Exception):  # without a board there is no job
                await self._board.aborted.remote(self._process)
        if self._dying < self._asking:
            await asyncio.sleep(
                _LAST_WORDS
            )  # the last of the chunks ends it, when it has written what it has
        os._exit(_ENGINE_DIED)

    async def _do(self, item: WorkItem) -> Done:
        watch = Stopwatch()
        if self._draining.is_set():
            return self._done([], watch)
        suspicion: Suspicion = await self._board.begin.remote(item.number, self._actor, self._process)
        chunk = await self._open(item, watch)
        written = await self._thread(self._written, item) if suspicion.repeated else []
        settled = await self._thread(self._positions, item, written)
        pending = [position for position in chunk.asked if position not in settled]
        while pending and not self._draining.is_set():
            culprit = poison(suspicion, pending)
            if culprit is not None:
                self._report.rows += 1
                written += await self._write(chunk, {culprit: _KILLER}, watch)
                suspicion = Suspicion(repeated=True, deaths=2)
                pending.remove(culprit)
            else:
                group = next_group(pending, suspicion)
                async with self._gate.group(group.name):
                    if self._draining.is_set():
                        break
                    await self._board.ask.remote(item.number, self._process, group.rows, group.tested)
                    self._asking += 1
                    try:
                        written += await self._answer(chunk, group.rows, watch)
                        # Report success before starting the next group, which may crash the engine.
                        self._board.passed.remote(item.number, self._process)
                    except EngineDeadError as error:
                        # Before another group is admitted, which would seem to have crashed with it.
                        await self._die(error)
                    finally:
                        self._asking -= 1
                suspicion = narrowed(suspicion, group.rows)
                finished = set(group.rows)
                pending = [position for position in pending if position not in finished]
        self._board.end.remote(item.number, self._process)
        return self._done(written, watch)

    def _done(self, written: list[parts.Part], watch: Stopwatch) -> Done:
        self._report.cpu_seconds = round(time.process_time() - self._cpu_before, 2)
        return Done(written, watch.seconds, dataclasses.replace(self._report))

    async def _open(self, item: WorkItem, watch: Stopwatch) -> _Chunk:
        """Read and render."""
        start = time.monotonic()
        rows = await self._thread(self._reader.read, item.chunk)
        watch.add("read", start)
        start = time.monotonic()
        positions = item.positions
        chosen = [rows.rows[position] for position in positions]
        asked = await self._thread(self._asker.ask, chosen, item.repetitions_of(positions))
        watch.add("render", start)
        return _Chunk(item, rows, dict(zip(positions, asked, strict=True)))

    async def _answer(self, chunk: _Chunk, positions: Sequence[int], watch: Stopwatch) -> list[parts.Part]:
        """Ask for these rows of a chunk and write what comes, as it comes."""
        written = []
        requests: dict[int, Request] = {}
        unfit: dict[int, Result] = {}
        for position in positions:
            request = chunk.asked[position].request
            if isinstance(request, Request):
                requests[position] = request
            else:
                unfit[position] = request
        self._report.rows += len(unfit)
        async for results in self._answers.to(requests, watch):
            written += await self._write(chunk, {**unfit, **results}, watch)
            unfit = {}
            self._board.finished.remote(self._actor)
        if unfit:
            written += await self._write(chunk, unfit, watch)
        return written

    async def _write(
        self, chunk: _Chunk, results: Mapping[int, Result], watch: Stopwatch
    ) -> list[parts.Part]:
        start = time.monotonic()
        written = await self._thread(self._write_parts, chunk, results)
        watch.add("write", start)
        # Not before: should this process end, the next one repeats what is not written, and counts it then.
        self._report.killers += sum(result is _KILLER for result in results.values())
        self._report.errors += sum(part.rows - part.ok for part in written)
        self._report.written += sum(part.rows for part in written)
        return written

    def _write_parts(self, chunk: _Chunk, results: Mapping[int, Result]) -> list[parts.Part]:
        """One part, unless its rows are very large."""
        stem, task = _stem(self._job, chunk.item), self._job.task
        first = chunk.item.chunk.ordinal
        return [
            parts.write(
                self._job.folder,
                stem,
                table,
                [chunk.asked[place].outcome(first + place, results[place]) for place in positions],
                task,
            )
            for positions, table in chunk.rows.portions(sorted(results))
        ]

    def _written(self, item: WorkItem) -> list[parts.Part]:
        """What a process of this submission that is gone has written of a chunk."""
        begins = f"{_stem(self._job, item)}."
        entries = self._job.folder.list(self._job.part_folder)
        return parts.listed([entry for entry in entries if entry.path.startswith(begins)])

    def _positions(self, item: WorkItem, written: Sequence[parts.Part]) -> set[int]:
        ordinals = (parts.outcomes(self._job.folder, part)[0] for part in written)
        return {int(ordinal) - item.chunk.ordinal for found in ordinals for ordinal in found}

    async def _thread(self, function: Callable[..., T], *args: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, function, *args)

    async def _tokenizer_thread(self, function: Callable[..., T], *args: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._tokenizers, function, *args)


def _stem(job: Job, item: WorkItem) -> str:
    return f"{job.part_folder}/{item.number:08d}"


def _actor() -> str:
    import ray

    return str(ray.get_runtime_context().get_actor_id() or "local")


def _node() -> str:
    import ray

    return str(ray.get_runtime_context().get_node_id())
