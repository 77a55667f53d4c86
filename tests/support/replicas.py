# SPDX-License-Identifier: Apache-2.0
"""Replicas in the test's own process, with a destination, a source and a board, and no cluster."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow.parquet as pq
import pytest
import ray

from airflow_provider_raybatch.contract.manifest import Digests
from airflow_provider_raybatch.job.execution.replica import replica as replica_module
from airflow_provider_raybatch.job.execution.replica.replica import Replica
from airflow_provider_raybatch.job.monitor.board import Board, Reporter
from airflow_provider_raybatch.job.preflight.input_check import look_at_source
from airflow_provider_raybatch.job.request.keys import Keyer
from airflow_provider_raybatch.job.work import Done, Job, WorkItem
from airflow_provider_raybatch.storage.folder import LocalFolder
from tests.support.specs import submitted


class Handle:
    """In place of the board's actor handle: calls arrive at once, and what a coroutine waits for is there."""

    def __init__(self, board: Board) -> None:
        for name in ("report", "describe", "start", "finished", "passed", "end"):
            setattr(self, name, SimpleNamespace(remote=getattr(board, name)))
        for name in ("begin", "ask", "aborted"):
            setattr(self, name, SimpleNamespace(remote=self._awaited(getattr(board, name))))

    @staticmethod
    def _awaited(function: Callable[..., Any]) -> Callable[..., Any]:
        async def call(*args: Any) -> Any:
            return function(*args)

        return call


class Place:
    """A destination, a source and a board, and replicas that work on them in this process."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, rows_per_chunk: int = 8) -> None:
        self.rows_per_chunk = rows_per_chunk
        monkeypatch.setattr(replica_module, "_actor", lambda: "replica")
        monkeypatch.setattr(replica_module, "_node", lambda: "node-1")
        monkeypatch.setattr(ray, "get", lambda reference, timeout=None: reference)
        # Its thread would outlive the test, and then ask a real Ray, which would start for it.
        monkeypatch.setattr(Reporter, "_run", lambda reporter: None)
        self.source = folder / "x.jsonl"
        self.out = LocalFolder(str(folder / "out"))
        self.board = Board()
        self.handle = Handle(self.board)

    def replica(self, **fields: Any) -> tuple[Replica, list[WorkItem]]:
        spec = submitted(**{
            "source": [str(self.source)],
            "prompt": "{row.text}",
            "destination": self.out.uri,
            **fields,
        })
        source = look_at_source(spec, None)
        items = [WorkItem(number, chunk) for number, chunk in enumerate(source.chunks(self.rows_per_chunk))]
        keyer = Keyer(spec, {}, Digests())
        return Replica(Job(spec, source.listing, self.out, "parts/0", keyer), self.handle), items

    @property
    def report(self) -> dict[str, Any]:
        (report,) = self.board.snapshot()
        return report


def do(replica: Replica, items: list[WorkItem]) -> list[Done]:
    async def run() -> list[Done]:
        batch = {"item": [item.as_json() for item in items]}
        return [Done.from_json(made["done"][0]) async for made in replica(batch)]

    return asyncio.run(run())


def written(place: Place, done: Done) -> list[dict[str, Any]]:
    tables = [pq.read_table(io.BytesIO(place.out.read(part.path))) for part in done.parts]
    return [row for table in tables for row in table.to_pylist()]


def lines(*rows: Any) -> str:
    return "".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows)
