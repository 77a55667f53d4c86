# SPDX-License-Identifier: Apache-2.0
"""How many rows are in the engine at once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_raybatch.job.monitor.replica_progress import ReplicaProgress
from airflow_provider_raybatch.job.replica import inflight as inflight_module
from airflow_provider_raybatch.job.replica.crash_log import CrashLog
from airflow_provider_raybatch.job.replica.inflight import InflightRequests, Row
from airflow_provider_raybatch.job.row import Request
from airflow_provider_raybatch.job.row_order.lengths import label
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
        """Answer one, and let requests go on."""
        (await self.requests.get()).set_result(None)
        for _ in range(5):
            await asyncio.sleep(0)


@pytest.mark.parametrize("shares", [True, False])
def test_in_the_end_rows_wait_where_others_can_get_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shares: bool
) -> None:
    """Else one engine has a second of rows more than another, and keeps it busy alone."""
    now = 0.0
    monkeypatch.setattr(inflight_module, "time", SimpleNamespace(monotonic=lambda: now, time=lambda: now))
    engine = Held()
    report = ReplicaProgress("replica", "node", "ready", started=0.0)
    begun = CrashLog(tmp_path / "begun")

    async def story() -> list[tuple[int, int]]:
        nonlocal now
        inflight = InflightRequests(engine, report, MOST, True, shares, Stopwatch(), lambda: None, begun)  # type: ignore[arg-type]
        inflight.add(Row(number, number, None, None, 0) for number in range(100))  # type: ignore[arg-type]
        inside = []
        while inflight.unanswered:
            now += 1 / A_SECOND
            await engine.answer()
            inside.append((len(inflight.waiting), len(inflight.inside)))
        return inside

    found = asyncio.run(story())
    assert max(inside for _, inside in found) == MOST + A_SECOND  # a second of rows more
    in_the_end = {inside for waiting, inside in found if 0 < waiting < A_SECOND}
    assert max(in_the_end) == (MOST if shares else MOST + A_SECOND)


LIMITS = [64] * 12 + [*range(10, 20)] * 110
"""Of rows, and tokens of their answers. At least 262 rows must run at once to end with the longest."""
PLACES = 2000
EARLY = 2
"""Tokens of an answer that ends long before its limit."""


class Stepping:
    """An engine in which each row gets a token a step."""

    def __init__(self) -> None:
        self.left: dict[asyncio.Future[int], int] = {}

    async def generate(self, encoded: int) -> int:
        request: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.left[request] = encoded
        await request
        return encoded

    def tokens(self, raw: int) -> tuple[int, int]:
        return 1, raw

    async def step(self) -> None:
        """Make a step, and let requests go on."""
        await asyncio.sleep(0)  # so that requests are here
        self.left = {request: tokens - 1 for request, tokens in self.left.items()}
        for request in [request for request, tokens in self.left.items() if not tokens]:
            request.set_result(self.left.pop(request))
        for _ in range(5):
            await asyncio.sleep(0)


def inflight_of(
    engine: Stepping,
    tmp_path: Path,
    grows: bool = True,
    has_share: bool = True,
    limits: Sequence[int] = LIMITS,
    tokens: Sequence[int] = (),
) -> InflightRequests:
    report = ReplicaProgress("replica", "node", "ready", started=0.0)
    begun = CrashLog(tmp_path / "begun")
    inflight = InflightRequests(engine, report, PLACES, grows, True, Stopwatch(), lambda: None, begun)  # type: ignore[arg-type]
    inflight.has_share = has_share
    labels = [label(Request(prompt="x", sampling={"max_tokens": limit})) for limit in limits]
    inflight.add(
        Row(number, number, None, None, 0, encoded=answer, label=one)  # type: ignore[arg-type]
        for number, (answer, one) in enumerate(zip(tokens or limits, labels, strict=True))
    )
    return inflight


def test_steps_of_few_rows_are_of_one_size(tmp_path: Path) -> None:
    """Rows begin in groups, no more at once than have to, and none ends long after the longest."""

    async def story() -> tuple[list[int], list[int]]:
        engine = Stepping()
        inflight = inflight_of(engine, tmp_path)
        inside, begun = [len(inflight.inside)], []
        while inflight.unanswered:
            waiting = len(inflight.waiting)
            await engine.step()
            inside.append(len(inflight.inside))
            begun.append(waiting - len(inflight.waiting))
        return inside, begun

    inside, begun = asyncio.run(story())
    most = inside[0]
    assert max(inside) == most
    assert 262 <= most <= 400
    assert len(begun) <= 1.1 * max(LIMITS)
    assert sum(begun) == len(LIMITS) - most
    assert len([count for count in begun if 0 < count < 16]) <= 1  # the last ones


@pytest.mark.parametrize(("grows", "has_share"), [(False, True), (True, False)])
def test_all_rows_begin_where_their_number_is_set_or_more_come(
    tmp_path: Path, grows: bool, has_share: bool
) -> None:
    async def story() -> int:
        return len(inflight_of(Stepping(), tmp_path, grows, has_share).inside)

    assert asyncio.run(story()) == len(LIMITS)


@pytest.mark.parametrize(
    ("long", "short", "at_once"),
    [
        (EARLY, 15, PLACES),  # few long ones, from which nothing is learned: the others decide
        (64, EARLY, 256),  # what is learned: there is less to do
    ],
)
def test_limits_are_no_lengths(tmp_path: Path, long: int, short: int, at_once: int) -> None:
    limits = [64] * 12 + [15] * 1400

    async def story() -> tuple[int, int]:
        engine = Stepping()
        inflight = inflight_of(engine, tmp_path, limits=limits, tokens=[long] * 12 + [short] * 1400)
        before = inflight.at_once
        for _ in range(EARLY + 1):
            await engine.step()
        return before, inflight.at_once

    before, after = asyncio.run(story())
    assert 256 < before < 512
    assert after == at_once


def test_what_does_not_begin_can_be_given_back(tmp_path: Path) -> None:
    """And then it does not count."""

    async def story() -> tuple[int, int, int]:
        inflight = inflight_of(Stepping(), tmp_path)
        return inflight.at_once, len(inflight.take_back(1000)), inflight.at_once

    before, back, after = asyncio.run(story())
    assert back == len(LIMITS) - before
    assert after < before


def test_a_row_that_has_answers_stays_with_its_replica(tmp_path: Path) -> None:
    """No other replica knows of them, so it would ask the earlier steps again."""

    async def story() -> tuple[list[int], list[int]]:
        inflight = inflight_of(Stepping(), tmp_path, grows=False, limits=[9] * (PLACES + 6))
        for row in inflight.waiting:
            row.has_begun = row.ordinal % 2 == 0
        given = [row.ordinal for row in inflight.take_back(2)]
        given += [row.ordinal for row in inflight.take_back(1000)]
        return sorted(given), [row.ordinal for row in inflight.waiting]

    given, kept = asyncio.run(story())
    assert given == [PLACES + 1, PLACES + 3, PLACES + 5]
    assert kept == [PLACES, PLACES + 2, PLACES + 4]


def test_no_row_begins_while_an_answer_waits_too_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether it waits for its turn or is being written: a kill would lose the answers after it, too."""
    now = 0.0
    monkeypatch.setattr(inflight_module, "time", SimpleNamespace(monotonic=lambda: now, time=lambda: now))
    engine, begun = Held(), CrashLog(tmp_path / "begun")
    report = ReplicaProgress("replica", "node", "ready", started=0.0)

    async def story() -> list[int]:
        nonlocal now
        inflight = InflightRequests(
            engine,
            report,
            2,
            False,
            False,
            Stopwatch(),
            lambda: None,
            begun,
            longest_wait=3.0,  # type: ignore[arg-type]
        )
        inflight.add(Row(number, number, None, None, 0) for number in range(20))  # type: ignore[arg-type]
        left = []

        async def answer(at: float) -> None:
            nonlocal now
            now = at
            await engine.answer()
            left.append(len(inflight.waiting))

        await answer(1.0)  # this one waits
        await answer(3.9)
        inflight.take()
        await answer(4.0)  # it is still being written
        inflight.written()
        left.append(len(inflight.waiting))
        await answer(6.9)
        await answer(7.0)  # the one of 4.0 has waited meanwhile
        inflight.take()
        inflight.written()
        left.append(len(inflight.waiting))
        return left

    assert asyncio.run(story()) == [17, 16, 16, 15, 14, 14, 13]
