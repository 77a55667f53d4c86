# SPDX-License-Identifier: Apache-2.0
"""A row that kills the engine: found within the bound, whichever it is, and no innocent one is blamed."""

from __future__ import annotations

import asyncio
import json
import math
import random
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pyarrow.parquet as pq
import pytest

from airflow_provider_raybatch.contract.failures import FailureClass, RaybatchError
from airflow_provider_raybatch.job.engine.base import EngineDeadError
from airflow_provider_raybatch.job.engine.echo import EchoEngine
from airflow_provider_raybatch.job.execution.replica import replica as replica_module
from airflow_provider_raybatch.job.execution.replica.replica import Replica
from airflow_provider_raybatch.job.monitor.poison_rows import (
    Suspects,
    Suspicion,
    narrowed,
    next_group,
    poison,
)
from airflow_provider_raybatch.job.work import WorkItem
from tests.support.replicas import Place

ROWS, CHUNK = 128, 32


class _ProcessEndedError(asyncio.CancelledError):
    """In place of the end of the replica's process."""


class Fragile(EchoEngine):
    """Dies of rows that say so, and at the instants (requests so far) at which somebody kills it."""

    kills_at: ClassVar[set[int]] = set()
    seconds: ClassVar[float] = 0.0
    asked = 0
    inside = most_after_death = 0
    """Requests at the same time: now, and at most since the engine died."""

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
        await asyncio.sleep(self.seconds)
        return await super().generate(encoded)


class World:
    """What Ray does: keeps chunks in flight, and repeats those that were when a replica's process ended."""

    def __init__(self, place: Place, monkeypatch: pytest.MonkeyPatch, in_flight: int) -> None:
        self.place = place
        self.in_flight = in_flight
        self.deaths = 0
        self._lives: list[asyncio.Future[None]] = []
        monkeypatch.setattr(replica_module, "open_engine", Fragile)
        monkeypatch.setattr(replica_module, "_LAST_WORDS", 0.0)
        monkeypatch.setattr(replica_module.os, "_exit", self._end)
        monkeypatch.setattr(replica_module.os, "getpid", lambda: self.deaths)

    def _end(self, status: int) -> None:
        for task in self._lives:  # nobody else runs another step
            task.cancel()
        raise _ProcessEndedError

    def run(self, **fields: Any) -> None:
        replica, items = self.place.replica(**fields)
        waiting = list(items)
        while waiting:
            waiting = asyncio.run(self._life(replica, waiting))
            # Threads end with their process. These write what they had begun before the next process looks.
            replica._threads.shutdown()
            replica._tokenizers.shutdown()
            if waiting:
                self.deaths += 1
                replica, _ = self.place.replica(**fields)

    async def _life(self, replica: Replica, items: list[WorkItem]) -> list[WorkItem]:
        """One process: works until it ends. Returns what it has not finished."""
        left = {item.number: item for item in items}
        slots = asyncio.Semaphore(self.in_flight)

        async def one(item: WorkItem) -> None:
            async with slots:
                async for _ in replica({"item": [item.as_json()]}):
                    left.pop(item.number)

        self._lives = [asyncio.ensure_future(one(item)) for item in items]
        ends = await asyncio.gather(*self._lives, return_exceptions=True)
        for end in ends:
            if isinstance(end, Exception):
                raise end
        return list(left.values())

    def rows(self) -> dict[int, bool]:
        """Whether each row of the input is good, by ordinal; each must be there once."""
        out: dict[int, bool] = {}
        for path in sorted(Path(self.place.out.root, "parts/0").iterdir()):
            for row in pq.read_table(path, columns=["ordinal", "ok"]).to_pylist():
                assert row["ordinal"] not in out
                out[row["ordinal"]] = row["ok"]
        return out


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    Fragile.kills_at, Fragile.asked, Fragile.seconds = set(), 0, 0.0
    Fragile.inside = Fragile.most_after_death = 0
    return World(Place(tmp_path, monkeypatch, CHUNK), monkeypatch, in_flight=4)


def write(world: World, poisoned: set[int], rows: int = ROWS) -> None:
    texts = (f"kill {number}" if number in poisoned else f"row {number}" for number in range(rows))
    world.place.source.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))


def bound(rows_in_flight: int) -> int:
    return math.ceil(math.log2(rows_in_flight)) + 1


@pytest.mark.parametrize("place", [*range(0, ROWS, 13), ROWS - 1])
@pytest.mark.parametrize("in_flight", [1, 4])
def test_one_row_is_found_within_the_bound(world: World, place: int, in_flight: int) -> None:
    world.in_flight = in_flight
    write(world, {place})
    world.run()
    assert world.rows() == {number: number != place for number in range(ROWS)}
    assert world.deaths <= bound(in_flight * CHUNK)


@pytest.mark.parametrize("poisoned", [(5, 60, 100), (63, 64), (10, 11, 12), (0, 127)], ids=str)
def test_several_rows_are_found_within_the_bound_of_each(world: World, poisoned: tuple[int, ...]) -> None:
    write(world, set(poisoned))
    world.run()
    assert world.rows() == {number: number not in poisoned for number in range(ROWS)}
    assert world.deaths <= len(poisoned) * bound(ROWS)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("poisoned", [(5, 60), (63, 64), (5, 60, 100)], ids=str)
def test_what_is_suspected_is_not_forgotten_when_another_row_kills_first(
    world: World, monkeypatch: pytest.MonkeyPatch, poisoned: tuple[int, ...], seed: int
) -> None:
    chance, encode, write_part = random.Random(seed), Fragile.encode, Replica._write_parts

    def slowly(function: Any) -> Any:
        def delayed(*args: Any) -> Any:
            time.sleep(chance.choice([0, 0.001, 0.01, 0.05]))
            return function(*args)

        return delayed

    monkeypatch.setattr(Fragile, "encode", slowly(encode))
    monkeypatch.setattr(Replica, "_write_parts", slowly(write_part))
    write(world, set(poisoned))
    world.run()
    assert world.rows() == {number: number not in poisoned for number in range(ROWS)}
    assert world.deaths <= len(poisoned) * bound(ROWS)


@pytest.mark.parametrize("seed", range(10))
def test_an_engine_that_somebody_kills_costs_no_row(world: World, seed: int) -> None:
    """Three times at most, whenever it is: also among the suspects of another kill, and one of them alone."""
    chance = random.Random(seed)
    Fragile.kills_at = {chance.randrange(1, stop) for stop in (CHUNK, 2 * CHUNK, 2 * CHUNK)}
    write(world, set(), rows=CHUNK)
    world.run()
    assert 1 <= world.deaths <= len(Fragile.kills_at)  # some fall into one process
    assert world.rows() == dict.fromkeys(range(CHUNK), True)


@pytest.mark.parametrize("place", [0, 20])
@pytest.mark.parametrize("kill", [1, CHUNK + 5, 2 * CHUNK])
def test_a_kill_during_a_search_delays_it(world: World, place: int, kill: int) -> None:
    Fragile.kills_at = {kill}
    write(world, {place}, rows=CHUNK)
    world.run()
    assert world.rows() == {number: number != place for number in range(CHUNK)}
    assert world.deaths <= 2 * bound(CHUNK) + 1


def test_processes_of_the_same_number_are_told_apart(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a node is lost, Ray starts the replica in another container, where numbers begin anew."""
    monkeypatch.setattr(replica_module.os, "getpid", lambda: 7)
    Fragile.seconds = 0.2  # of the second half, nothing is finished when it dies
    write(world, {20}, rows=CHUNK + 1)
    world.run()
    assert world.rows() == {number: number != 20 for number in range(CHUNK + 1)}


def test_who_waited_at_the_gate_asks_nothing_when_the_replica_shall_end(world: World) -> None:
    write(world, set())
    replica, items = world.place.replica()

    async def wait_and_drain() -> None:
        async with replica._gate.group("suspects"):
            waiting = asyncio.ensure_future(replica._do(items[0]))
            await asyncio.sleep(0.5)  # it opens its chunk, and waits
            replica._draining.set()
        assert (await waiting).parts == []

    asyncio.run(wait_and_drain())
    assert Fragile.asked == 0


def test_suspects_are_tried_in_two_halves_and_not_one_by_one(world: World) -> None:
    Fragile.kills_at, Fragile.seconds = {ROWS}, 0.2  # when all have begun, and none has ended
    write(world, set())
    world.run()
    assert world.deaths == 1
    assert Fragile.most_after_death == ROWS // 2


def test_a_row_that_was_alone_when_somebody_killed_the_engine_is_not_to_blame(world: World) -> None:
    Fragile.kills_at = {1}
    write(world, set(), rows=1)
    world.run()
    assert world.deaths == 1
    assert world.rows() == {0: True}


@pytest.mark.parametrize("kills", [{1, 2}, {1, 2, 3}], ids=["two kills", "three kills"])
def test_a_row_that_is_killed_again_and_again_from_outside_is_not_to_blame(
    world: World, kills: set[int]
) -> None:
    Fragile.kills_at = kills
    write(world, set(), rows=1)
    world.run()
    assert world.deaths == len(kills)
    assert world.rows() == {0: True}


def test_kills_from_outside_of_all_rows_of_a_half_and_of_a_single_row_cost_no_row(world: World) -> None:
    half = ROWS // 2
    # Each when all of its rows have begun, and none has ended.
    Fragile.kills_at, Fragile.seconds = {ROWS, ROWS + half, ROWS + half + 1}, 0.2
    write(world, set())
    world.run()
    assert world.deaths == 3
    assert world.rows() == dict.fromkeys(range(ROWS), True)


@pytest.mark.parametrize("place", [0, 17, 127])
def test_a_row_of_which_the_system_kills_the_engine_is_found_later(world: World, place: int) -> None:
    """Such as one that takes more memory than there is: each death looks like one from outside."""
    texts = (f"sigkill {number}" if number == place else f"row {number}" for number in range(ROWS))
    world.place.source.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    world.run()
    assert world.rows() == {number: number != place for number in range(ROWS)}
    assert world.deaths <= bound(ROWS) + 3


def test_processes_that_end_without_a_word_are_no_proof() -> None:
    """A node that is lost, or a replica that is killed itself."""
    suspects = Suspects()
    for process in range(3):
        suspects.start("r", f"p{process}")
        found = suspects.begin(1, "r", f"p{process}")
        assert poison(found, [0]) is None
        suspects.ask(1, f"p{process}", (0,), tested=process > 0)
    suspects.aborted("p2")
    suspects.start("r", "p3")
    assert poison(suspects.begin(1, "r", "p3"), [0]) == 0


def test_an_engine_that_dies_of_everything_is_given_up(world: World) -> None:
    write(world, set(range(ROWS)))
    with pytest.raises(RaybatchError, match="max_restarts: the engine died again and again") as caught:
        world.run(engine="echo", max_restarts=2)
    assert caught.value.failure_class is FailureClass.ENGINE_DEAD
    assert world.deaths <= 6


@pytest.mark.parametrize("max_restarts", [0, 1, 2, 5])
def test_giving_up_takes_two_deaths_and_two_for_each_restart_at_most(max_restarts: int) -> None:
    """A process may die of another chunk's row before the chunk at fault has said which of its own it was."""
    chance, most = random.Random(0), 0
    for _ in range(300):
        suspects, deaths, pending = Suspects(), 0, {item: list(range(8)) for item in range(2)}
        while suspects.start("r", f"p{deaths}") <= max_restarts:
            item = chance.choice(list(pending))
            suspicion = suspects.begin(item, "r", f"p{deaths}")
            if (culprit := poison(suspicion, pending[item])) is not None:
                pending[item].remove(culprit)
                suspicion = Suspicion(repeated=True, deaths=2)
            group = next_group(pending[item], suspicion)
            suspects.ask(item, f"p{deaths}", group.rows, group.tested)
            deaths += 1
        most = max(most, deaths)
    assert most <= 2 * max_restarts + 2


def test_who_waited_for_his_turn_when_another_died_alone_is_cleared() -> None:
    suspects, all_four = Suspects(), (0, 1, 2, 3)
    suspects.start("r", "p1")
    for item in (1, 2):
        suspects.begin(item, "r", "p1")
        suspects.ask(item, "p1", all_four, tested=False)
    suspects.start("r", "p2")
    assert suspects.begin(2, "r", "p2") == Suspicion(True, all_four, (), "p1", deaths=1, kills=1)
    assert suspects.begin(1, "r", "p2") == Suspicion(True, all_four, all_four, "p1", deaths=1, kills=1)
    suspects.ask(1, "p2", all_four, tested=True)
    suspects.start("r", "p3")
    assert suspects.begin(2, "r", "p3").asked == ()
    assert suspects.begin(1, "r", "p3") == Suspicion(True, all_four, (0, 1), "p2", True, True, 2, kills=1)


def test_who_has_passed_and_waits_for_his_next_turn_is_cleared() -> None:
    suspects = Suspects()
    suspects.start("r", "p1")
    for item in (1, 2):
        suspects.begin(item, "r", "p1")
    suspects.ask(1, "p1", (7,), tested=True)
    suspects.passed(1, "p1")
    suspects.ask(2, "p1", (0, 1), tested=True)
    suspects.start("r", "p2")
    assert suspects.begin(1, "r", "p2").asked == ()
    assert suspects.begin(2, "r", "p2").alone


def test_the_halves_are_of_all_rows_that_were_in_flight() -> None:
    suspects = Suspects()
    suspects.start("r", "p1")
    asked = {5: (0, 1, 2), 3: (4, 6), 4: (1,), 6: (0,)}
    for item, rows in asked.items():
        suspects.begin(item, "r", "p1")
        suspects.ask(item, "p1", rows, tested=False)
    suspects.start("r", "p2")
    found = {item: suspects.begin(item, "r", "p2") for item in sorted(asked)}
    assert [found[item].first for item in sorted(asked)] == [(4, 6), (1,), (0,), ()]
    firsts = [next_group(range(8), found[item]) for item in (3, 4, 5)]
    assert len({group.name for group in firsts}) == 1
    assert next_group(range(8), found[6]).name != firsts[0].name
    rest = next_group(range(8), narrowed(found[5], [0]))
    assert (rest.rows, rest.name) == ((1, 2), next_group(range(8), found[6]).name)


def test_after_two_deaths_in_a_row_a_single_row_is_tried() -> None:
    known = Suspicion(True, (0, 1, 2, 3), (0, 1), "p", True, True, 1)
    assert next_group(range(8), known).rows == (0, 1)
    tired = replace(known, deaths=2)
    assert next_group(range(8), tired).rows == (7,)
    assert next_group(range(4), tired).rows == (3,)
    assert next_group(range(8), tired).name != next_group(range(8), tired).name


def suspicion(asked: tuple[int, ...], tested: bool = True) -> Suspicion:
    return Suspicion(True, asked, asked[: (len(asked) + 1) // 2], "p", True, tested, 1)


def test_what_was_written_before_the_death_is_no_suspect() -> None:
    assert poison(suspicion((3, 4)), [4, 5]) == 4
    assert poison(suspicion((3, 4)), [3, 4]) is None
    assert poison(suspicion((4,), tested=False), [4]) is None


def test_a_row_that_only_others_point_at_is_not_to_blame() -> None:
    """Half of what died alone has passed; but somebody may have killed the engine meanwhile."""
    left = narrowed(suspicion((1, 2)), [1])
    assert poison(left, [2]) is None
    assert next_group([2], left).rows == (2,)
