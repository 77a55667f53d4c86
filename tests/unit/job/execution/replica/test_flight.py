# SPDX-License-Identifier: Apache-2.0
"""How many rows are in the engine at once."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_raybatch.job.execution.replica import flight as flight_module
from airflow_provider_raybatch.job.execution.replica.begun import BegunRows
from airflow_provider_raybatch.job.execution.replica.flight import Flight, Row
from airflow_provider_raybatch.job.monitor.board import ReplicaReport
from airflow_provider_raybatch.job.work import Stopwatch

MOST = 8
A_SECOND = 16
"""Rows that the engine answers in one; a power of two, for exact sums of seconds."""


class Held:
    """An engine that answers when it is told to, the oldest request first."""

    def __init__(self) -> None:
        self.requests: asyncio.Queue[asyncio.Future[None]] = asyncio.Queue()

    async def generate(self, encoded: Any) -> Any:
        request: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.requests.put_nowait(request)
        await request

    def tokens(self, raw: Any) -> tuple[int, int]:
        return 1, 1

    async def answer(self) -> None:
        """Answer one, and let the flight go on."""
        (await self.requests.get()).set_result(None)
        for _ in range(5):
            await asyncio.sleep(0)


@pytest.mark.parametrize("shares", [True, False])
def test_in_the_end_rows_wait_where_others_can_get_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shares: bool
) -> None:
    """Else one engine has a second of rows more than another, and keeps it busy alone."""
    now = 0.0
    monkeypatch.setattr(flight_module, "time", SimpleNamespace(monotonic=lambda: now, time=lambda: now))
    engine = Held()
    report = ReplicaReport("replica", "node", "ready", started=0.0)
    begun = BegunRows(tmp_path / "begun")

    async def story() -> list[tuple[int, int]]:
        nonlocal now
        flight = Flight(engine, report, MOST, True, shares, Stopwatch(), lambda: None, begun)  # type: ignore[arg-type]
        flight.add(Row(number, number, None, None, 0) for number in range(100))  # type: ignore[arg-type]
        inside = []
        while flight.unanswered:
            now += 1 / A_SECOND
            await engine.answer()
            inside.append((len(flight.waiting), len(flight.inside)))
        return inside

    found = asyncio.run(story())
    assert max(inside for _, inside in found) == MOST + A_SECOND  # a second of rows more
    in_the_end = {inside for waiting, inside in found if 0 < waiting < A_SECOND}
    assert max(in_the_end) == (MOST if shares else MOST + A_SECOND)
