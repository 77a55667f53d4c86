# SPDX-License-Identifier: Apache-2.0
"""Replicas without a cluster, with a coordinator in this process."""

from __future__ import annotations

import asyncio
import dataclasses
import io
import json
import tempfile
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import ray

from airflow_provider_raybatch.contract.manifest import Digests
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.job.engine.base import Engine
from airflow_provider_raybatch.job.input.survey import Chunk, Source
from airflow_provider_raybatch.job.monitor.replica_progress import ReplicaProgress, Reporter
from airflow_provider_raybatch.job.parts.ledger import RowMask
from airflow_provider_raybatch.job.planning import plan
from airflow_provider_raybatch.job.planning.plan import ClusterView, Plan
from airflow_provider_raybatch.job.replica import contents as contents_module
from airflow_provider_raybatch.job.replica import process_parts
from airflow_provider_raybatch.job.replica import replica as replica_module
from airflow_provider_raybatch.job.replica import worker as worker_module
from airflow_provider_raybatch.job.replica.coordinator import Coordinator
from airflow_provider_raybatch.job.replica.replica import Replica
from airflow_provider_raybatch.job.request.keys import Keyer, Repetitions
from airflow_provider_raybatch.job.row_order import buckets, rows_to_do
from airflow_provider_raybatch.job.row_order.grouping import Grouping
from airflow_provider_raybatch.job.row_order.rows_to_do import Input, input_of
from airflow_provider_raybatch.job.scheduling.messages import Assignment, Begun, PullRequest
from airflow_provider_raybatch.job.warm_engines import source as engine_source
from airflow_provider_raybatch.job.work import CheckedModel, Done, Job
from airflow_provider_raybatch.job.work import work as work_of
from airflow_provider_raybatch.storage.folder import Folder, LocalFolder
from tests.support.sources import look_at_source
from tests.support.specs import asking, submitted

CLUSTER = ClusterView(({"CPU": 2.0},))


class Board(Coordinator):
    """Has given out one piece of rows."""

    def __init__(self, rows: int, fewest: int = 1, folder: Folder | None = None) -> None:
        super().__init__(folder or LocalFolder("/nowhere"))
        self.begin(one_piece(rows), ["parts"], fewest, ())

    def starts(self, name: str) -> bool:
        """An actor's process starts. Returns whether it opens its engine."""
        self.start(name, name)
        return self.is_needed(name)

    def ready(self, *names: str, slots: int = 4) -> None:
        """The engines of processes are ready."""
        for name in names:
            self.start(name, name)
            self.join(name, slots)

    def asks(self, name: str, finished: Sequence[int] | np.ndarray = ()) -> Assignment:
        """A process asks for rows, and reports those that it has finished."""
        rows = np.array(finished, np.int64)
        return self.pull(name, PullRequest(answered=len(rows), finished=rows))

    def dies(self, name: str, engine_died: bool = False, begun: Sequence[int] | np.ndarray = ()) -> None:
        self.lost(name, engine_died, Begun(np.array(begun, np.int64)), PullRequest(), None)


def one_piece(rows: int, size: int = 1) -> Input:
    return Input([Chunk(0, 0, rows, 0, 0, rows)], [size], np.packbits(np.zeros(rows, np.bool_)))


class Handle:
    """Stands for the coordinator's actor handle: calls arrive at once, and their results are ready.

    :param job: what this replica is told to do, with its plan.
    """

    def __init__(
        self, coordinator: Coordinator, job: Job, plan: Plan, model: CheckedModel | None = None
    ) -> None:
        self.model = SimpleNamespace(remote=lambda process: model or CheckedModel(job.spec))
        self.job = SimpleNamespace(remote=lambda: [(job, plan)])
        for name in ("report", "describe", "start", "is_needed"):
            setattr(self, name, SimpleNamespace(remote=getattr(coordinator, name)))
        awaited = ("join", "pull", "give_back", "claim", "unclaim", "share", "content", "fetched")
        for name in (*awaited, "leave", "lost"):
            setattr(self, name, SimpleNamespace(remote=self._awaited(getattr(coordinator, name))))

    @staticmethod
    def _awaited(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            # As with Ray, a call is sent at once, whenever its result is awaited.
            answer = asyncio.get_running_loop().create_future()
            try:
                answer.set_result(function(*args))
            except Exception as error:
                answer.set_exception(error)
            return answer

        return call


def in_buckets(job: Job, source: Source, resolved: RowMask, grouping: Grouping, at_once: int) -> Input:
    """Return rows in buckets, whose slices are there themselves instead of references to them.

    :param at_once: rows of a chunk; a task has eight chunks.
    """
    items = work_of(source, at_once, resolved)
    cut = buckets.Cut(job, grouping, np.dtype(np.uint32))
    made = [buckets.slices(items[first : first + 8], cut) for first in range(0, len(items), 8)]
    together = buckets.buckets([found for found, *_ in made], [slices for _, *slices in made], most=1000)
    return rows_to_do.in_buckets(together, 1000.0, Repetitions())


class AtOnce:
    """Stands for threads: each call is done when it is made."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        done = Future[Any]()
        done.set_result(function(*arguments))
        return done


def in_no_actor(patch: pytest.MonkeyPatch) -> None:
    """Replace what a replica asks of the actor that it is, and the coordinator's threads."""
    patch.setattr(process_parts, "ThreadPoolExecutor", AtOnce)
    patch.setattr(replica_module, "_actor", lambda: "replica")
    patch.setattr(replica_module, "_name", lambda: "")
    patch.setattr(replica_module, "_node", lambda: "node-1")
    patch.setattr(engine_source, "_gpus", lambda: ["3"])
    patch.setattr(worker_module, "_LEAST_PAUSE", 0.0)  # it spares a coordinator that many ask


class Place:
    """A destination, a source and a coordinator, and replicas that work on them in this process.

    :ivar grouping: how rows come into buckets, if they do.
    """

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, batch: int = 8) -> None:
        self.batch = batch
        self.grouping: Grouping | None = None
        in_no_actor(monkeypatch)
        monkeypatch.setattr(ray, "get", lambda reference, timeout=None: reference)
        # Its thread would outlive the test, and then call ray, which would start a cluster.
        monkeypatch.setattr(Reporter, "_run", lambda *_: None)
        monkeypatch.setattr(tempfile, "tempdir", str(folder))  # left-overs of killed processes
        monkeypatch.setattr(contents_module, "_put", lambda contents: {p: [c] for p, c in contents.items()})
        monkeypatch.setattr(contents_module, "_got", lambda references: references[0])
        self._patch = monkeypatch
        self.source = folder / "x.jsonl"
        self.out = LocalFolder(str(folder / "out"))
        self._coordinator: Coordinator | None = None

    @property
    def coordinator(self) -> Coordinator:
        assert self._coordinator is not None
        return self._coordinator

    def use(self, engine: Callable[[BatchInferenceSpec, bool], Engine]) -> None:
        """Let replicas open another engine than their spec asks for."""
        self._patch.setattr(replica_module, "open_engine", lambda spec, spans, *_: engine(spec, spans))

    def write(self, *texts: str) -> None:
        """Write the source, with the column `text`."""
        self.source.write_text(lines(*({"text": text} for text in texts)))

    def written(self) -> dict[int, bool]:
        """Return by ordinal whether each written row is good; each must be there once."""
        out: dict[int, bool] = {}
        for path in sorted(Path(self.out.root, "parts/0").iterdir()):
            for row in pq.read_table(path, columns=["ordinal", "ok"]).to_pylist():
                assert row["ordinal"] not in out
                out[row["ordinal"]] = row["ok"]
        return out

    def reasons(self) -> list[str]:
        """Return why rows failed."""
        tables = (pq.read_table(path) for path in Path(self.out.root, "parts/0").iterdir())
        return [row["failure"]["reason"] for table in tables for row in table.to_pylist() if not row["ok"]]

    def replica(self, resolved: Collection[int] = (), actor: str = "replica", **fields: Any) -> Replica:
        """Start another replica's process.

        :param resolved: rows that are done already.
        """
        self._patch.setattr(replica_module, "_actor", lambda: actor)
        spec = submitted(**{
            "source": [str(self.source)],
            **asking("{row.text}", fields),
            "destination": self.out.uri,
            **fields,
        })
        source = look_at_source(spec)
        chosen = dataclasses.replace(plan.make(spec, source.rows, CLUSTER), rows_per_chunk=self.batch)
        job = Job(spec, source.listing, self.out, "parts/0", Keyer(spec, {}, Digests()))
        if self._coordinator is None:
            done = np.isin(np.arange(source.rows), list(resolved))
            todo = input_of(source, done)
            if self.grouping is not None:
                todo = in_buckets(job, source, done, self.grouping, at_once=100)
            self._coordinator = Coordinator(self.out)
            self._coordinator.begin(todo, ["parts/0"], chosen.fewest, ())
        return Replica(spec, {}, Handle(self.coordinator, job, chosen), spans_nodes=False)

    @property
    def report(self) -> ReplicaProgress:
        (report,) = self.coordinator.snapshot()
        return report


def eventually(ask: Callable[[], Any]) -> Any:
    """Wait for at most a minute until an answer counts as true; return it."""
    until = time.monotonic() + 60
    while not (found := ask()):
        assert time.monotonic() < until
        time.sleep(0.01)
    return found


async def until(condition: Callable[[], Any]) -> None:
    """Wait for at most 10 s."""
    for _ in range(1000):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it did not come to that")


async def work(replica: Replica) -> None:
    """Use a ticket."""
    async for _ in replica({"ticket": [0]}):
        pass


def meanwhile(replica: Replica, condition: Callable[[], Any], then: Callable[[], Any]) -> None:
    """Let a replica work; as soon as a condition holds, do something; wait for its end."""

    async def story() -> None:
        working = asyncio.ensure_future(work(replica))
        await until(condition)
        then()
        await working

    asyncio.run(story())


def do(place: Place, replica: Replica) -> list[Done]:
    """Let it work to its end; return what it has written since the last call."""
    asyncio.run(work(replica))
    return [done for _, done in place.coordinator.news()[1]]


def written(place: Place, *done: Done) -> list[dict[str, Any]]:
    tables = [pq.read_table(io.BytesIO(place.out.read(part.path))) for one in done for part in one.parts]
    return [row for table in tables for row in table.to_pylist()]


def lines(*rows: Any) -> str:
    return "".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows)
