# SPDX-License-Identifier: Apache-2.0
"""How a replica asks for rows, writes them, and ends: one or two replicas beside a coordinator."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_raybatch.job.engine.base import EngineDeadError
from airflow_provider_raybatch.job.parts.part import Part, listed
from airflow_provider_raybatch.job.replica import inflight as inflight_module
from airflow_provider_raybatch.job.replica import replica as replica_module
from airflow_provider_raybatch.job.replica.row_asker import RowAsker
from tests.support.replicas import Place, do, meanwhile, until, work, written
from tests.support.scripted import ProcessEndedError, Scripted


def parts(place: Place) -> list[Part]:
    return listed(place.out.list("parts/0"))


def write_tables(place: Place, *tables: dict[str, Any]) -> None:
    place.source = place.source.parent / "in"
    place.source.mkdir()
    for number, table in enumerate(tables):
        pq.write_table(pa.table(table), place.source / f"{number:02d}.parquet")


def engine_events(folder: Path) -> list[str]:
    return [json.loads(line)["event"] for file in folder.iterdir() for line in file.open()]


def test_slow_row_delays_the_others_by_flush_interval_only(place: Place) -> None:
    place.write("a", "wait", "b")
    replica = place.replica(flush_interval=0.05)
    meanwhile(replica, lambda: parts(place), lambda: Scripted.events["wait"].set())
    assert sorted(part.rows for part in parts(place)) == [1, 2]


def test_many_answers_are_written_while_the_engine_has_the_rest(place: Place) -> None:
    """So that few are left to write when the last one is there."""
    place.write(*map(str, range(1200)), "wait")
    replica = place.replica(flush_interval=3600)
    meanwhile(replica, lambda: parts(place), lambda: Scripted.events["wait"].set())
    early, last = sorted((part.rows for part in parts(place)), reverse=True)
    assert early >= 1024
    assert early + last == 1201


def test_the_engine_waits_for_a_slow_writer(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a kill would lose whatever was answered meanwhile."""
    now, may_write = time.monotonic(), threading.Event()
    clock = SimpleNamespace(monotonic=lambda: now, time=time.time)
    monkeypatch.setattr(inflight_module, "time", clock)
    write, writing = RowAsker.write, threading.Event()

    def slow(asker: RowAsker, rows: Any, followers: Any) -> Any:
        writing.set()
        assert may_write.wait(60)
        return write(asker, rows, followers)

    monkeypatch.setattr(RowAsker, "write", slow)
    place.write("a", "wait", "b", "c")
    replica = place.replica(rows_in_flight=1, flush_interval=10)

    async def story() -> None:
        nonlocal now
        working = asyncio.ensure_future(work(replica))
        await until(lambda: "wait" in Scripted.asked)
        now += 30
        await until(writing.is_set)
        Scripted.events["wait"].set()
        await until(lambda: replica.report.rows == 2)
        assert Scripted.asked == ["a", "wait"]
        may_write.set()
        await working

    asyncio.run(story())
    assert place.written() == dict.fromkeys(range(4), True)


def test_rows_of_many_files_are_one_part(place: Place) -> None:
    """Also if they are in many files: here 40 Parquet files of a row each."""
    write_tables(place, *({"text": [f"row {number}"], "n": [number]} for number in range(40)))
    (done,) = do(place, place.replica())
    assert len(done.parts) == 1
    assert [(row["ordinal"], row["input"]["n"]) for row in written(place, done)] == [
        (number, number) for number in range(40)
    ]


def test_rows_with_other_columns_get_parts_of_their_own(place: Place) -> None:
    columns = [pa.array([number], pa.int64() if number % 2 else pa.int32()) for number in range(6)]
    write_tables(place, *({"text": ["a"], "n": column} for column in columns))
    done = do(place, place.replica())
    found = {row["ordinal"]: row["input"]["n"] for row in written(place, *done)}
    assert found == {number: number for number in range(6)}


def test_draining_replica_writes_finished_rows_and_begins_none(place: Place) -> None:
    place.write("a", "wait", "b")
    replica = place.replica(engine="echo", rows_in_flight=2)
    # "a", and "b" in its place
    meanwhile(replica, lambda: replica.report.rows == 2, replica.draining.set)
    assert [part.rows for part in parts(place)] == [2]
    assert not place.coordinator.news()[3]  # it has left


def test_dead_engine_leaves_finished_rows_and_names_the_others(place: Place) -> None:
    texts = ["a", "wait", "b", "wait and die", "c", "d"]
    place.write(*texts)
    replica = place.replica(engine="echo", rows_in_flight=3)
    coordinator = place.coordinator
    losses: list[Any] = []
    lost = coordinator._queue.lost
    coordinator._queue.lost = lambda *args: losses.append(args) or lost(*args)  # type: ignore[method-assign,func-returns-value]
    with pytest.raises(asyncio.CancelledError):
        meanwhile(
            replica,
            lambda: "wait and die" in Scripted.asked and replica.report.rows == 4,
            lambda: Scripted.events["wait and die"].set(),
        )
    ((_, _, engine_died, begun),) = losses
    assert engine_died
    assert set(begun.in_engine.tolist()) == {1, 3}
    ((_, done),) = coordinator.news()[1]
    assert [row["ordinal"] for row in written(place, done)] == [0, 2, 4, 5]


def dies(*_: object) -> None:
    raise EngineDeadError("the process of vLLM's front end ended (exit code -11).")


def test_front_end_that_dies_with_answers_repeats_them(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.write("a", "b")
    replica = place.replica()
    with monkeypatch.context() as patch:
        patch.setattr(Scripted, "decode", dies)
        with pytest.raises(asyncio.CancelledError):
            asyncio.run(work(replica))
    assert not parts(place)
    next_one = place.replica()
    (done,) = do(place, next_one)
    assert [row["ok"] for row in written(place, done)] == [True, True]
    assert not place.coordinator._queue._search.groups


def test_engine_that_dies_at_its_start_gets_one_more(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.write("a")
    monkeypatch.setattr(replica_module, "open_engine", dies)
    with pytest.raises(ProcessEndedError):
        place.replica()
    with pytest.raises(EngineDeadError, match=r"exit code -11"):
        place.replica()


def test_a_replica_that_was_taken_for_lost_ends(place: Place) -> None:
    place.write("wait")
    replica = place.replica(flush_interval=0.05)

    def is_lost() -> None:
        place.coordinator._bury(replica.process)
        Scripted.events["wait"].set()

    with pytest.raises(asyncio.CancelledError):
        meanwhile(replica, lambda: Scripted.asked, is_lost)


def test_a_replica_without_rows_leaves_and_closes_its_engine(place: Place, tmp_path: Path) -> None:
    """It returns its ticket, and at once each one that it gets then."""
    texts = ["wait", *map(str, range(20))]
    place.write(*texts)
    fields = {"replicas": (1, 2), "rows_in_flight": 4, "engine_args": {"request_log": str(tmp_path / "log")}}
    first = place.replica(engine="echo", **fields)
    second = place.replica(actor="another", engine="echo", **fields)

    async def story() -> None:
        working = asyncio.ensure_future(work(first))
        await until(lambda: "wait" in Scripted.asked)
        await work(second)
        await work(second)
        assert not working.done()
        assert second.report.state == "ended"
        assert first.report.state == "ready"
        Scripted.events["wait"].set()
        await working

    asyncio.run(story())
    assert engine_events(tmp_path / "log").count("close") == 1
    assert first.report.rows + second.report.rows == 21
    assert sum(part.rows for part in parts(place)) == 21
    assert place.coordinator._queue.is_finished


def test_a_replica_that_comes_too_late_opens_no_engine(place: Place, tmp_path: Path) -> None:
    place.write("wait", *map(str, range(8)))
    fields = {"replicas": (1, 2), "rows_in_flight": 20, "engine_args": {"request_log": str(tmp_path / "log")}}
    first = place.replica(engine="echo", **fields)

    async def story() -> None:
        working = asyncio.ensure_future(work(first))
        await until(lambda: first.report.rows == 8)
        late = place.replica(actor="another", engine="echo", **fields)
        await work(late)
        late._measure()  # as its reporter does, once a second
        assert late.report.state == "ended"
        Scripted.events["wait"].set()
        await working

    asyncio.run(story())
    assert engine_events(tmp_path / "log").count("open") == 1
