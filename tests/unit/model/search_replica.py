# SPDX-License-Identifier: Apache-2.0
"""A replica's process without Ray, storage and engine: the real loop, with its calls as steps."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import ray

from airflow_provider_raybatch.job import work
from airflow_provider_raybatch.job.engine.base import EngineDeadError
from airflow_provider_raybatch.job.input.survey import Chunk
from airflow_provider_raybatch.job.monitor.replica_progress import ReplicaProgress
from airflow_provider_raybatch.job.parts.part import Part
from airflow_provider_raybatch.job.replica import contents as contents_module
from airflow_provider_raybatch.job.replica import inflight, prefetcher
from airflow_provider_raybatch.job.replica import replica as replica_module
from airflow_provider_raybatch.job.replica import worker as worker_module
from airflow_provider_raybatch.job.replica.process_parts import WrittenPart
from airflow_provider_raybatch.job.replica.replica import Replica
from airflow_provider_raybatch.job.replica.request_builder import PreparedRow
from airflow_provider_raybatch.job.replica.row_asker import RowAsker, StepWork, Written
from airflow_provider_raybatch.job.row import Request, Response, RowFailure
from airflow_provider_raybatch.job.row_order.lengths import Costs
from airflow_provider_raybatch.job.scheduling.messages import StaleReplicaError
from airflow_provider_raybatch.job.warm_engines import source as engine_source
from airflow_provider_raybatch.job.warm_engines.source import EngineAccess

from .search_memory import BegunInMemory
from .stepped_loop import AT_ONCE, SteppedLoop

if TYPE_CHECKING:
    from .search import World

FLUSH = 1000.0
PAUSE = 1e-3
"""Seconds; all pauses together are shorter than `flush_interval`, which passes only where that is a step."""


class Ended(BaseException):
    """The end of a process."""


class Waits(BaseException):
    """A process that starts must ask again, since it is not known yet what the one before has written."""


@dataclass
class Content:
    """The rows that a process has read."""

    replica: Stepped
    chunk: Chunk


class Stepped(Replica):
    """:ivar worker: its working time, once its engine is ready."""

    def __init__(self, world: World, actor: str, life: int) -> None:
        self.world, self.loop = world, SteppedLoop()
        self.is_dead, self._poll = False, 0.0
        self.worker: worker_module.ReplicaWorker | None = None
        self.task: asyncio.Task[Any] | None = None
        self.process = f"{actor}-{life}"
        self._actor = actor
        self.report = ReplicaProgress(self.process, "node")
        self.draining, self.asked_to_ask = threading.Event(), threading.Event()
        self.inflight, self.cpu_before = None, 0.0
        self._has_job, self._has_left, self._access = True, False, EngineAccess(self.report)
        self._shows_rows = True
        scope = world.scope
        spec = SimpleNamespace(
            flush_interval=FLUSH,
            prompt_function=None,
            may_have_images=False,
        )
        self.job: Any = SimpleNamespace(spec=spec, swaps_adapters=False)
        self.plan: Any = SimpleNamespace(
            rows_in_engine=scope.slots, grows=False, rows_per_chunk=2, replicas=scope.replicas
        )
        self.coordinator = SimpleNamespace(**{
            name: SimpleNamespace(remote=self._sender(name)) for name in _CALLS
        })
        self.reporter: Any = SimpleNamespace(send=self.tell, reporting_failure=contextlib.nullcontext)
        self._metrics: Any = SimpleNamespace(update=lambda report, rows_in_flight: None)
        self.reader, self.engine = self, self  # type: ignore[assignment]
        self.questions = [StepWork(self, self)]  # type: ignore[arg-type]
        self.asker = _Asker(self)
        self._check_starts(SimpleNamespace(destination=world.begun, max_restarts=scope.restarts))
        if not self._is_needed():
            self._leave()

    def _sender(self, name: str) -> Callable[..., asyncio.Future[Any]]:
        def send(*arguments: Any) -> asyncio.Future[Any]:
            future = self.loop.create_future()
            try:
                future.set_result(self.world.called(self, name, partial(self.world.answer, name, arguments)))
            except StaleReplicaError as error:
                future.set_exception(error)
            return future

        return send

    # These stand for threads, reader, builder, writer and engine.

    async def thread(self, function: Callable[..., Any], *args: Any) -> Any:
        return function(*args)

    tokenizer_thread = thread

    def content(self, chunk: Chunk) -> Content:
        return Content(self, chunk)

    def rows(self, chunk: Chunk, content: Content, positions: Sequence[int]) -> Any:
        return SimpleNamespace(rows=[chunk.ordinal + position for position in positions])

    def ask(self, rows: Sequence[int], repetitions: Any, killer: Any = None) -> list[PreparedRow]:
        bad = RowFailure("render", "the row makes no request")
        key, bad_rows = self.world.scope.key, self.world.scope.bad
        return [
            PreparedRow(bad)
            if row in bad_rows
            else PreparedRow(Request(prompt=str(row)), key(row), is_shared=key(row) is not None)
            for row in rows
        ]

    async def prepare(self) -> None:
        pass

    def encode(self, requests: Sequence[Request]) -> list[int]:
        return [int(request.prompt or "") for request in requests]

    async def generate(self, row: int) -> Response:
        self.world.asked(self, row)
        await self.loop.create_future()
        self.world.answered.add(row)
        return Response((), 0)

    def tokens(self, raw: Any) -> tuple[int, int]:
        return 0, 0

    def close(self) -> None:
        assert not self.held, "it leaves with rows"

    def decode(self, rows: Any) -> None:
        pass

    def write(self, rows: Sequence[inflight.Row]) -> list[WrittenPart]:
        results = {row.ordinal: row.result for row in rows}
        part = self.world.called(self, "write", lambda: self.world.write(self, results))
        return [WrittenPart(part, rows, None)]

    def of(self, step: int, part: Part, key: bytes) -> Response | RowFailure | None:
        outcomes = self.world.parts[part]
        good = next((good for row, good in outcomes.items() if self.world.scope.key(row) == key), None)
        return None if good is None else Response() if good else worker_module._KILLER

    # Steps.

    def begin(self) -> None:
        """The engine is ready."""

        async def use_a_ticket() -> None:
            async for _ in self({"ticket": [0]}):
                pass

        self.report.state = "ready"
        self.task = self.loop.start(use_a_ticket())
        self.loop.run()

    @property
    def inside(self) -> list[int]:
        """Return the rows in its engine."""
        return [] if self.worker is None else [row.ordinal for row in self.worker._inflight.inside.values()]

    @property
    def held(self) -> set[int]:
        """Return the rows that it has and has not reported as written."""
        if self.worker is None:
            return set()
        rows = [
            *self.worker._inflight.waiting,
            *self.worker._inflight.inside.values(),
            *self.worker._inflight.landed,
            *(row for some in self.worker._shared._waiting.values() for row in some),
        ]
        return {row.ordinal for row in rows} | set(self.worker._finished)

    def answered(self, row: int) -> None:
        """The engine has answered a row."""
        self._future(row).set_result(None)
        self.loop.run()

    def engine_dies(self, killed: bool) -> None:
        """The engine dies, with all rows in it."""
        for row in self.inside:
            self._future(row).set_exception(EngineDeadError("the engine died", killed))
        self.loop.run()

    def _future(self, row: int) -> asyncio.Future[Any]:
        assert self.worker is not None
        (task,) = (task for task, one in self.worker._inflight.inside.items() if one.ordinal == row)
        return task._fut_waiter  # type: ignore[attr-defined]

    @property
    def pauses(self) -> bool:
        """Return whether it will ask after a pause."""
        worker, now = self.worker, self.loop.now
        if worker is None or worker._ask_at <= now:
            return False
        asyncio._set_running_loop(self.loop)  # type: ignore[arg-type]
        self.loop.now = worker._ask_at
        try:
            return worker._asks()
        finally:
            self.loop.now = now
            asyncio._set_running_loop(None)

    def pause(self) -> None:
        """Pass the time until it asks again."""
        self.loop.wait(2 * PAUSE)

    @property
    def will_flush(self) -> bool:
        return self.worker is not None and bool(self.worker._inflight.landed)

    def flush_interval(self) -> None:
        """Pass the flush interval."""
        self.loop.wait(FLUSH)

    @property
    def has_news(self) -> bool:
        """Return whether the reply to its next report has news for it."""
        drains = self.world.coordinator._draining and not self.draining.is_set()
        asks = self.world.coordinator._queue.wants(self.process) and not self.asked_to_ask.is_set()
        return self.worker is not None and (drains or asks)

    def hear(self) -> None:
        """Pass a second, after which it reports."""
        self.tell()
        self.loop.wait(1.0)

    def tell(self) -> None:
        """Report as its reporter does."""
        drains, asks = self.world.coordinator.report(self.report)
        if drains:
            self.draining.set()
        if asks:
            self.asked_to_ask.set()

    def end(self) -> None:
        """End the process: from now on it has no effect."""
        self.is_dead = True
        self.loop.end()


_CALLS = (
    "start",
    "is_needed",
    "join",
    "pull",
    "give_back",
    "claim",
    "unclaim",
    "share",
    "content",
    "fetched",
    "leave",
    "lost",
)


class _Asker(RowAsker):
    """Asks one question, without columns."""

    def __init__(self, replica: Stepped) -> None:
        (self._step,) = replica.questions
        self.shared_answers: Any = replica
        self.shares = bool(replica.world.scope.equal)

    def prepare(
        self, numbers: Sequence[int], read: Sequence[Any], repetitions: Any, killer: RowFailure | None
    ) -> list[inflight.Row]:
        prepared = self._step.builder.ask([rows.rows[place] for rows, place, _ in read], repetitions, killer)
        return [
            inflight.Row(number, position, one, rows, place)
            for number, one, (rows, place, position) in zip(numbers, prepared, read, strict=True)
        ]

    def requests(self, rows: Sequence[inflight.Row]) -> list[Any]:
        return [row.prepared.request for row in rows]

    def decode(self, rows: Sequence[inflight.Row]) -> None:
        self._step.decode(rows)

    def write(self, rows: Sequence[inflight.Row], followers: Mapping[Any, Sequence[Any]]) -> Written:
        late = [row for some in followers.values() for row in some]
        for leader, some in followers.items():
            for row in some:
                row.result = leader.result
        parts = [one.part for one in self._step.writer.write([*rows, *late])]
        keys = [row.prepared.key for row in rows if row.prepared.key]
        answers = [(parts[0], keys)] if keys else []
        return Written(parts, [*rows, *late], uncounted=len(late), keys=answers)


class _Costs(Costs):
    """Costs that learn nothing: the rows are too few, and real ones take longer than a step."""

    def learn(self, label: int, tokens: float) -> bool:
        return False


_COSTS = _Costs()


class _Worker(worker_module.ReplicaWorker):
    """Keeps itself on its replica, so that the world can read it."""

    def __init__(self, replica: Stepped) -> None:
        super().__init__(replica)
        replica.worker = self


@contextlib.contextmanager
def modelled() -> Iterator[None]:
    """Replace time, memory and the end of a process by the model."""

    def end(status: int) -> None:
        raise Ended

    def sleep(seconds: float) -> None:
        raise Waits

    def got(references: list[Content]) -> Content | None:
        return None if references[0].replica.is_dead else references[0]

    with pytest.MonkeyPatch.context() as patch:
        now = SimpleNamespace(
            monotonic=lambda: asyncio._get_running_loop().time(),
            time=lambda: 1.0,
            process_time=lambda: 0.0,
            sleep=sleep,
        )
        for module in (replica_module, worker_module, inflight, prefetcher, work):
            patch.setattr(module, "time", now)
        patch.setattr(inflight, "Costs", lambda: _COSTS)
        patch.setattr(engine_source, "_gpus", list)
        patch.setattr(replica_module, "ReplicaWorker", _Worker)
        patch.setattr(replica_module, "_name", lambda: "")
        patch.setattr(replica_module, "path_of", lambda destination, actor: (destination, actor))
        patch.setattr(replica_module, "left_by_the_last", BegunInMemory.left)
        patch.setattr(replica_module, "CrashLog", BegunInMemory)
        patch.setattr(worker_module, "_LEAST_PAUSE", PAUSE)
        patch.setattr(worker_module, "_IDLE_CALLS", 1e9)
        patch.setattr(replica_module.os, "_exit", end)
        patch.setattr(contents_module, "_LOOK_AGAIN", AT_ONCE)
        patch.setattr(contents_module, "_PATIENCE", AT_ONCE)
        patch.setattr(
            contents_module, "_put", lambda contents: {piece: [one] for piece, one in contents.items()}
        )
        patch.setattr(contents_module, "_got", got)
        patch.setattr(ray, "get", lambda future, timeout=None: future.result())
        yield
