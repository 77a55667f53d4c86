# SPDX-License-Identifier: Apache-2.0
"""What the board knows of a process that ends at the worst instant, and what has been written by then."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow.parquet as pq
import pytest

from airflow_provider_raybatch.job.engine.base import EngineDeadError
from airflow_provider_raybatch.job.engine.echo import EchoEngine
from airflow_provider_raybatch.job.execution.replica import replica as replica_module
from airflow_provider_raybatch.job.execution.replica.replica import Replica
from tests.support.replicas import Place, lines

ROWS = 8


class ProcessEndedError(asyncio.CancelledError):
    """In place of the end of the replica's process."""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    return Place(tmp_path, monkeypatch, ROWS)


def test_rows_that_have_passed_are_not_suspected_of_what_comes_after(place: Place) -> None:
    """A process that ends between two groups: of what it had in its engine before, nothing is in doubt."""
    place.source.write_text(lines(*({"text": str(number)} for number in range(ROWS))))
    dead, (item,) = place.replica()
    place.board.begin(item.number, "replica", dead._process)
    place.board.ask(item.number, dead._process, range(ROWS), tested=False)
    replica, _ = place.replica()
    ask, groups = place.handle.ask.remote, []

    async def ends_before_the_second(*arguments: Any) -> None:
        groups.append(arguments)
        if len(groups) == 2:
            raise ProcessEndedError
        await ask(*arguments)

    place.handle.ask = SimpleNamespace(remote=ends_before_the_second)

    async def work() -> None:
        async for _ in replica({"item": [item.as_json()]}):
            raise AssertionError("it has not ended")

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(work())
    place.board.start("replica", "next")
    told = place.board.begin(item.number, "replica", "next")
    assert told.repeated
    assert told.asked == tuple(range(ROWS // 2, ROWS))


def test_a_finished_row_makes_up_for_the_deaths_before_it(place: Place) -> None:
    place.source.write_text(lines({"text": "a"}))
    for number in range(3):
        place.board.start("replica", f"dead {number}")
    replica, (item,) = place.replica()

    async def work() -> None:
        async for _ in replica({"item": [item.as_json()]}):
            pass

    asyncio.run(work())
    assert place.board.start("replica", "next") == 0


class Mortal(EchoEngine):
    """Ends for all when each row but the last of each chunk is answered."""

    async def generate(self, encoded: Any) -> Any:
        if "last" in encoded.prompt:
            await asyncio.sleep(0.2)
            raise EngineDeadError("vLLM's engine process died.", killed=False)
        return await super().generate(encoded)


def test_each_chunk_of_a_dead_engine_writes_what_it_has(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = ["last" if number % ROWS == ROWS - 1 else str(number) for number in range(2 * ROWS)]
    place.source.write_text(lines(*({"text": text} for text in texts)))
    monkeypatch.setattr(replica_module, "open_engine", Mortal)
    replica, items = place.replica()
    write_parts = Replica._write_parts

    def slowly(self: Replica, chunk: Any, results: Any) -> Any:
        time.sleep(0.5 * chunk.item.number)
        return write_parts(self, chunk, results)

    monkeypatch.setattr(Replica, "_write_parts", slowly)
    found: list[set[int]] = []

    def end(status: int) -> None:
        folder = Path(place.out.root, "parts/0")
        rows = [pq.read_table(path, columns=["ordinal"])["ordinal"].to_pylist() for path in folder.iterdir()]
        found.append({ordinal for part in rows for ordinal in part})
        raise ProcessEndedError

    monkeypatch.setattr(replica_module.os, "_exit", end)

    async def work() -> None:
        works = [asyncio.ensure_future(anext(replica({"item": [item.as_json()]}))) for item in items]
        await asyncio.wait(works, return_when=asyncio.FIRST_COMPLETED)
        for one in works:
            one.cancel()
        await asyncio.gather(*works, return_exceptions=True)

    asyncio.run(work())
    assert found[0] == {number for number, text in enumerate(texts) if text != "last"}


def test_who_waits_while_an_engine_dies_is_not_suspected(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The word that the engine has ended takes its time, in which no other chunk is let in."""

    class Dead(EchoEngine):
        async def generate(self, encoded: Any) -> Any:
            raise EngineDeadError("vLLM's engine process died.", killed=False)

    place.source.write_text(lines(*({"text": str(number)} for number in range(2 * ROWS))))
    monkeypatch.setattr(replica_module, "open_engine", Dead)
    dead, items = place.replica()
    place.board.begin(items[0].number, "replica", dead._process)
    place.board.ask(items[0].number, dead._process, (0,), tested=False)
    replica, _ = place.replica()
    told: list[Any] = []

    async def slowly(process: str) -> None:
        await asyncio.sleep(0.5)
        place.board.aborted(process)

    def end(status: int) -> None:
        place.board.start("replica", "next")
        told.extend(place.board.begin(item.number, "replica", "next") for item in items)
        raise ProcessEndedError

    place.handle.aborted = SimpleNamespace(remote=slowly)
    monkeypatch.setattr(replica_module.os, "_exit", end)

    async def work() -> None:
        async with replica._gate.group("both arrive"):
            works = [asyncio.ensure_future(anext(replica({"item": [item.as_json()]}))) for item in items]
            while replica._gate._waiting < 1 or place.board._records.keys() != {0, 1}:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        await asyncio.wait(works, return_when=asyncio.FIRST_COMPLETED)
        for one in works:
            one.cancel()
        await asyncio.gather(*works, return_exceptions=True)

    asyncio.run(work())
    assert (told[0].asked, told[0].alone) == ((0,), True)
    assert told[1].asked == ()
