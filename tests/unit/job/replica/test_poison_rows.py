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

import pyarrow.parquet as pq
import pytest

from airflow_provider_raybatch.contract.failures import FailureClass, RaybatchError
from airflow_provider_raybatch.job.engine.base import EngineDeadError
from airflow_provider_raybatch.job.replica import replica as replica_module
from airflow_provider_raybatch.job.replica.process_parts import PartWriter
from airflow_provider_raybatch.job.row import Request, Response
from tests.support.replicas import Place, work
from tests.support.scripted import ProcessEndedError
from tests.support.simulated import SimulatedEngine

ROWS, CHUNK = 128, 32


class Fragile(SimulatedEngine):
    """An engine that dies of rows with `kill`, and from outside after given numbers of requests.

    Of rows with `crash`, its front end dies while it tokenises them, and with it all that it was asked.
    """

    kills_at: ClassVar[set[int]] = set()
    seconds: ClassVar[float] = 0.0
    crash_seconds: ClassVar[float] = 0.0
    """How much later than rows in the engine its tokeniser tells of a crash."""
    asked = 0
    has_crashed = False

    def encode(self, requests: Sequence[Request]) -> list[Any]:
        if any("crash" in str(request) for request in requests):
            self.has_crashed = True
            time.sleep(self.crash_seconds)
        self._live()
        return super().encode(requests)

    def decode(self, raw: Sequence[Any]) -> list[Response]:
        self._live()
        return super().decode(raw)

    def _live(self) -> None:
        if self.has_crashed:
            raise EngineDeadError("the process of vLLM's front end ended (exit code -11).")

    async def generate(self, encoded: Any) -> Any:
        type(self).asked += 1
        number = self.asked
        await asyncio.sleep(0)
        killed = number in self.kills_at or "sigkill" in encoded.prompt
        if killed or "kill" in encoded.prompt:
            raise EngineDeadError("vLLM's engine process died.", killed)
        await asyncio.sleep(self.seconds)
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
    Fragile.kills_at, Fragile.asked, Fragile.seconds, Fragile.crash_seconds = set(), 0, 0.0, 0.0
    return World(Place(tmp_path, monkeypatch, CHUNK), monkeypatch, in_flight=ROWS)


def write(world: World, poisoned: set[int], rows: int = ROWS, kills: str = "kill") -> None:
    world.place.write(*(f"{kills if number in poisoned else 'row'} {number}" for number in range(rows)))


def bound(rows_in_flight: int) -> int:
    return math.ceil(math.log2(rows_in_flight)) + 1


@pytest.mark.parametrize("place", [*range(0, ROWS, 13), ROWS - 1])
@pytest.mark.parametrize(
    ("kills", "in_flight", "deaths"),
    [
        ("kill", CHUNK, bound(CHUNK)),
        ("kill", ROWS, bound(ROWS)),
        ("crash", 8, bound(ROWS) + 1),  # those that were prepared are halved after their first death
        ("crash", ROWS, bound(ROWS) + 1),
        ("sigkill", ROWS, bound(ROWS) + 3),  # as of too much memory: like a kill from outside
    ],
)
def test_one_row_is_found_within_the_bound(
    world: World, kills: str, in_flight: int, deaths: int, place: int
) -> None:
    """Also one that kills while it is tokenised, or makes the system kill the engine."""
    world.in_flight = in_flight
    write(world, {place}, kills=kills)
    world.run()
    assert world.place.written() == {number: number != place for number in range(ROWS)}
    assert world.deaths <= deaths


def test_rows_in_the_engine_may_tell_first_of_a_death(world: World) -> None:
    """Of a front end that dies while it tokenises; its row is suspected then, too."""
    world.in_flight, Fragile.seconds, Fragile.crash_seconds = 8, 0.01, 0.1
    write(world, {ROWS - 1}, kills="crash")
    world.run()
    assert world.place.written() == {number: number != ROWS - 1 for number in range(ROWS)}
    assert world.deaths <= bound(ROWS) + 1


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


def test_the_row_leaves_optional_columns_of_the_others(world: World) -> None:
    """Rows that were searched beside it have their reasoning and log probabilities."""
    write(world, {9}, rows=CHUNK)
    world.run(engine_args={"reasoning_parser": "qwen3"}, sampling={"logprobs": 0})
    for path in Path(world.place.out.root, "parts/0").iterdir():
        for row in pq.read_table(path).to_pylist():
            if row["ordinal"] == 9:
                assert (row["ok"], row["output"]) == (False, None)
            else:
                assert row["output"]["reasoning_tokens"] == 5
                assert len(row["output"]["logprobs"]) == 5 + len(f"row {row['ordinal']}".split())
    assert world.place.written() == {number: number != 9 for number in range(CHUNK)}


def test_processes_with_the_same_pid_are_distinguished(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a node is lost, Ray starts the replica in another container, where process ids begin anew."""
    monkeypatch.setattr(replica_module.os, "getpid", lambda: 7)
    Fragile.seconds = 0.2  # no row of the second half is finished when it dies
    write(world, {20}, rows=CHUNK + 1)
    world.run()
    assert world.place.written() == {number: number != 20 for number in range(CHUNK + 1)}


@pytest.mark.parametrize("kills", [{1}, {1, 2}, {1, 2, 3}], ids=["one kill", "two kills", "three kills"])
def test_row_killed_from_outside_is_not_blamed(world: World, kills: set[int]) -> None:
    Fragile.kills_at = kills
    write(world, set(), rows=1)
    world.run()
    assert world.deaths == len(kills)
    assert world.place.written() == {0: True}


@pytest.mark.parametrize("max_restarts", [0, 1, 2, 5])
def test_max_restarts_end_an_engine_that_dies_of_every_row(world: World, max_restarts: int) -> None:
    """It is given up after two deaths, and two for each allowed restart, at most."""
    write(world, set(range(ROWS)))
    with pytest.raises(RaybatchError, match="max_restarts: the engine died again and again") as caught:
        world.run(max_restarts=max_restarts)
    assert caught.value.failure_class is FailureClass.ENGINE_DEAD
    assert world.deaths <= 2 * max_restarts + 2
