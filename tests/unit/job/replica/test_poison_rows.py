# SPDX-License-Identifier: Apache-2.0
"""A row that kills the engine is found within the bound, wherever it is, and no innocent row is blamed."""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

from airflow_provider_raybatch.contract.failures import FailureClass, RaybatchError
from airflow_provider_raybatch.job.engine.base import EngineDeadError
from airflow_provider_raybatch.job.engine.echo import EchoEngine
from airflow_provider_raybatch.job.replica import replica as replica_module
from airflow_provider_raybatch.job.replica.process_parts import PartWriter
from airflow_provider_raybatch.job.row import Request, Response
from tests.support.replicas import Place, work
from tests.support.scripted import ProcessEndedError

ROWS, CHUNK = 128, 32


class Fragile(EchoEngine):
    """An engine that dies of rows with `kill`, and from outside after given numbers of requests.

    Of rows with `crash`, its front end dies while it tokenises them, and with it all that it was asked.
    """

    kills_at: ClassVar[set[int]] = set()
    holds: ClassVar[bool] = False
    """Whether no request ends before the last of those kills."""
    awaits: ClassVar[int] = 0
    """Requests at the same time before which none ends after the engine died, but for a minute at most."""
    seconds: ClassVar[float] = 0.0
    asked = 0
    inside = most_after_death = 0
    """Requests at the same time: now, and at most since the engine died."""
    has_crashed = False

    def encode(self, requests: Sequence[Request]) -> list[Any]:
        if any("crash" in str(request) for request in requests):
            self.has_crashed = True
        self._live()
        return super().encode(requests)

    def decode(self, raw: Sequence[Any]) -> list[Response]:
        self._live()
        return super().decode(raw)

    def _live(self) -> None:
        if self.has_crashed:
            raise EngineDeadError("the process of vLLM's front end ended (exit code -11).")

    async def generate(self, encoded: Any) -> Any:
        here = type(self)
        number = here.asked = here.asked + 1
        here.inside += 1
        if number > max(here.kills_at, default=number):
            here.most_after_death = max(here.most_after_death, here.inside)
        try:
            return await self._answered(number, encoded)
        finally:
            here.inside -= 1

    async def _answered(self, number: int, encoded: Any) -> Any:
        await asyncio.sleep(0)
        killed = number in self.kills_at or "sigkill" in encoded.prompt
        if killed or "kill" in encoded.prompt:
            raise EngineDeadError("vLLM's engine process died.", killed)
        for _ in range(6000):
            if self.most_after_death >= self.awaits or number < max(self.kills_at, default=0):
                break
            await asyncio.sleep(0.01)
        await asyncio.sleep(600 if self.holds and number < max(self.kills_at) else self.seconds)
        self._live()
        return await super().generate(encoded)


class World:
    """Does Ray's part: it starts a replica's process again when it has ended.

    :param in_flight: rows in the engine at once.
    """

    def __init__(self, place: Place, monkeypatch: pytest.MonkeyPatch, in_flight: int) -> None:
        self.place = place
        self.in_flight = in_flight
        self.deaths = 0
        place.use(Fragile)
        monkeypatch.setattr(replica_module.os, "_exit", self._end)
        monkeypatch.setattr(replica_module.os, "getpid", lambda: self.deaths)

    def _end(self, status: int) -> None:
        raise ProcessEndedError

    def run(self, **fields: Any) -> None:
        while True:
            replica = self.place.replica(
                engine="echo", rows_in_flight=self.in_flight, max_error_fraction=1.0, **fields
            )
            try:
                asyncio.run(work(replica))
            except asyncio.CancelledError:
                self.deaths += 1
            else:
                return
            finally:
                # Threads end with their process, so their writes are complete before the next process begins.
                replica._threads.shutdown()
                replica._tokenizers.shutdown()


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    Fragile.kills_at, Fragile.asked, Fragile.seconds, Fragile.holds = set(), 0, 0.0, False
    Fragile.inside = Fragile.most_after_death = Fragile.awaits = 0
    return World(Place(tmp_path, monkeypatch, CHUNK), monkeypatch, in_flight=ROWS)


def write(world: World, poisoned: set[int], rows: int = ROWS, kills: str = "kill") -> None:
    world.place.write(*(f"{kills if number in poisoned else 'row'} {number}" for number in range(rows)))


def bound(rows_in_flight: int) -> int:
    return math.ceil(math.log2(rows_in_flight)) + 1


@pytest.mark.parametrize("place", [*range(0, ROWS, 13), ROWS - 1])
@pytest.mark.parametrize("in_flight", [CHUNK, ROWS])
def test_one_row_is_found_within_the_bound(world: World, place: int, in_flight: int) -> None:
    world.in_flight = in_flight
    write(world, {place})
    world.run()
    assert world.place.written() == {number: number != place for number in range(ROWS)}
    assert world.deaths <= bound(in_flight)


@pytest.mark.parametrize("place", [0, 40, ROWS - 1])
@pytest.mark.parametrize("in_flight", [8, ROWS])
def test_one_that_kills_while_it_is_tokenised_is_found(world: World, place: int, in_flight: int) -> None:
    world.in_flight = in_flight
    write(world, {place}, kills="crash")
    world.run()
    assert world.place.written() == {number: number != place for number in range(ROWS)}
    assert world.deaths <= bound(ROWS) + 1  # those that were prepared are halved after their first death


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("poisoned", [(5, 60), (63, 64), (5, 60, 100), (10, 11, 12), (0, 127)], ids=str)
def test_several_rows_are_found_within_the_bound_of_each(
    world: World, monkeypatch: pytest.MonkeyPatch, poisoned: tuple[int, ...], seed: int
) -> None:
    """However long tokenising and writing take, but for seed 0."""
    chance = random.Random(seed)

    def slowly(function: Any) -> Any:
        def delayed(*args: Any) -> Any:
            time.sleep(chance.choice([0, 0.001, 0.01, 0.05]))
            return function(*args)

        return delayed

    if seed:
        monkeypatch.setattr(Fragile, "encode", slowly(Fragile.encode))
        monkeypatch.setattr(PartWriter, "write", slowly(PartWriter.write))
    write(world, set(poisoned))
    world.run()
    assert world.place.written() == {number: number not in poisoned for number in range(ROWS)}
    assert world.deaths <= len(poisoned) * bound(ROWS)


@pytest.mark.parametrize("seed", range(10))
def test_engine_killed_from_outside_costs_no_row(world: World, seed: int) -> None:
    """Three kills at most, at any time: also while suspected rows of another kill are tried."""
    chance = random.Random(seed)
    Fragile.kills_at = {chance.randrange(1, stop) for stop in (CHUNK, 2 * CHUNK, 2 * CHUNK)}
    write(world, set(), rows=CHUNK)
    world.run()
    assert 1 <= world.deaths <= len(Fragile.kills_at)  # some fall into one process
    assert world.place.written() == dict.fromkeys(range(CHUNK), True)


@pytest.mark.parametrize("place", [0, 20])
@pytest.mark.parametrize("kill", [1, CHUNK + 5, 2 * CHUNK])
def test_a_kill_during_a_search_delays_it(world: World, place: int, kill: int) -> None:
    Fragile.kills_at = {kill}
    write(world, {place}, rows=CHUNK)
    world.run()
    assert world.place.written() == {number: number != place for number in range(CHUNK)}
    assert world.deaths <= 2 * bound(CHUNK) + 1


def test_processes_with_the_same_pid_are_distinguished(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a node is lost, Ray starts the replica in another container, where process ids begin anew."""
    monkeypatch.setattr(replica_module.os, "getpid", lambda: 7)
    Fragile.seconds = 0.2  # no row of the second half is finished when it dies
    write(world, {20}, rows=CHUNK + 1)
    world.run()
    assert world.place.written() == {number: number != 20 for number in range(CHUNK + 1)}


def test_suspected_rows_are_tried_in_halves(world: World) -> None:
    Fragile.kills_at, Fragile.holds = {ROWS}, True  # when all have begun, and none has ended
    Fragile.awaits, Fragile.seconds = ROWS // 2, 0.5  # so that more would be seen
    write(world, set())
    world.run()
    assert world.deaths == 1
    assert Fragile.most_after_death == ROWS // 2


@pytest.mark.parametrize("kills", [{1}, {1, 2}, {1, 2, 3}], ids=["one kill", "two kills", "three kills"])
def test_row_killed_from_outside_is_not_blamed(world: World, kills: set[int]) -> None:
    Fragile.kills_at = kills
    write(world, set(), rows=1)
    world.run()
    assert world.deaths == len(kills)
    assert world.place.written() == {0: True}


def test_outside_kills_during_a_search_cost_no_row(world: World) -> None:
    half = ROWS // 2
    # Each when all of its rows have begun, and none has ended.
    Fragile.kills_at, Fragile.holds = {ROWS, ROWS + half, ROWS + half + 1}, True
    write(world, set())
    world.run()
    assert world.deaths == 3
    assert world.place.written() == dict.fromkeys(range(ROWS), True)


@pytest.mark.parametrize("place", [0, 17, 127])
def test_row_that_makes_the_system_kill_the_engine_is_found(world: World, place: int) -> None:
    """For example, a row that takes too much memory: each death looks like a kill from outside."""
    write(world, {place}, kills="sigkill")
    world.run()
    assert world.place.written() == {number: number != place for number in range(ROWS)}
    assert world.deaths <= bound(ROWS) + 3


@pytest.mark.parametrize("max_restarts", [0, 1, 2, 5])
def test_max_restarts_end_an_engine_that_dies_of_every_row(world: World, max_restarts: int) -> None:
    """It is given up after two deaths, and two for each allowed restart, at most."""
    write(world, set(range(ROWS)))
    with pytest.raises(RaybatchError, match="max_restarts: the engine died again and again") as caught:
        world.run(max_restarts=max_restarts)
    assert caught.value.failure_class is FailureClass.ENGINE_DEAD
    assert world.deaths <= 2 * max_restarts + 2
