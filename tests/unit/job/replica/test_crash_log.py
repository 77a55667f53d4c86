# SPDX-License-Identifier: Apache-2.0
"""If a replica's process is killed, only the rows that it had begun are suspected."""

from __future__ import annotations

import asyncio
import errno
import math
import os
import sys
import threading
import types
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from airflow_provider_raybatch.job.engine.echo import EchoEngine
from airflow_provider_raybatch.job.replica import crash_log
from airflow_provider_raybatch.job.replica.crash_log import CrashLog, left_by_the_last, path_of
from airflow_provider_raybatch.job.scheduling.messages import PullRequest
from tests.support.replicas import Place, work

ROWS, IN_FLIGHT = 64, 8
BLAMED_AFTER = 3
"""Deaths without a report of a row that runs alone, before the one for which it is blamed."""


class Deadly(EchoEngine):
    """Some rows end the replica's whole process, at once and without a report."""

    killed: ClassVar[asyncio.Event]
    ended: ClassVar[threading.Event]
    loop: ClassVar[asyncio.AbstractEventLoop]
    seconds: ClassVar[float] = 0.0

    def encode(self, requests: Any) -> list[Any]:
        if any("crash" in str(request) for request in requests):
            self.loop.call_soon_threadsafe(self.killed.set)
            self.ended.wait(30)
        return super().encode(requests)

    async def generate(self, encoded: Any) -> Any:
        await asyncio.sleep(0)
        if "kill" in encoded.prompt:
            self.killed.set()
            await asyncio.Event().wait()
        await asyncio.sleep(self.seconds)
        return await super().generate(encoded)


class World:
    def __init__(self, place: Place) -> None:
        self.place = place
        self.deaths = 0
        place.use(Deadly)

    def run(self, **fields: Any) -> None:
        while not asyncio.run(self._process(fields)):
            self.deaths += 1
            assert self.deaths < 40

    async def _process(self, fields: dict[str, Any]) -> bool:
        Deadly.killed, Deadly.loop = asyncio.Event(), asyncio.get_running_loop()
        Deadly.ended = threading.Event()
        replica = self.place.replica(
            engine="echo", rows_in_flight=IN_FLIGHT, max_error_fraction=1.0, max_restarts=20, **fields
        )
        working = asyncio.ensure_future(work(replica))
        killed = asyncio.ensure_future(Deadly.killed.wait())
        await asyncio.wait([working, killed], return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            while not working.done():
                working.cancel()  # before Python 3.12, wait_for loses one that comes with what it waits for
                await asyncio.wait([working], timeout=0.1)
            Deadly.ended.set()
            replica._threads.shutdown()
            replica._tokenizers.shutdown()
            return False
        killed.cancel()
        working.result()
        return True


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    Deadly.seconds = 0.0
    return World(Place(tmp_path, monkeypatch, IN_FLIGHT))


def write(world: World, place: int, how: str) -> None:
    world.place.write(*(f"{how if number == place else 'row'} {number}" for number in range(ROWS)))


@pytest.mark.parametrize(
    ("how", "place", "begun"),
    [
        *(("kill", place, IN_FLIGHT) for place in range(0, 24, 3)),
        # Rows that were prepared together die once more before they are halved.
        *(("crash", place, 2 * 4 * IN_FLIGHT) for place in (0, 13, 40)),
    ],
)
def test_row_that_kills_the_process_is_found(world: World, how: str, place: int, begun: int) -> None:
    """In its engine, or while it is tokenised."""
    Deadly.seconds = 0.05 if how == "kill" else 0.0
    write(world, place, how)
    world.run()
    assert world.place.written() == {number: number != place for number in range(ROWS)}
    assert world.deaths <= math.ceil(math.log2(begun)) + 1 + BLAMED_AFTER


def test_row_whose_user_function_ends_the_process_is_found(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To write its dead letter, the function isn't called for it again."""
    module = types.ModuleType("ending_prompts")
    calls: list[str] = []

    def make(row: dict[str, str]) -> str:
        calls.append(row["text"])
        if row["text"].startswith("end"):
            Deadly.loop.call_soon_threadsafe(Deadly.killed.set)
            Deadly.ended.wait(30)
        return row["text"]

    module.make = make  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "ending_prompts", module)
    write(world, 13, "end")
    world.run(prompt_function="ending_prompts:make")
    assert world.place.written() == {number: number != 13 for number in range(ROWS)}
    assert calls.count("end 13") == world.deaths
    (reason,) = world.place.reasons()
    assert "prompt_function 'ending_prompts:make'" in reason


def test_only_what_was_begun_is_suspected(world: World) -> None:
    Deadly.seconds = 0.05
    write(world, 0, "kill")
    replica = world.place.replica(engine="echo", rows_in_flight=IN_FLIGHT)
    coordinator = world.place.coordinator
    coordinator.join(replica.process, 40)
    held = coordinator.pull(replica.process, PullRequest()).rows
    assert len(held) > 5
    replica.begun.prepare([3, 4])
    for ordinal in (3, 0, 1, 2):
        replica.begun.begin(ordinal)
    replica.begun.end([1])
    world.place.replica(engine="echo")
    suspected = [group.rows.tolist() for group in coordinator._queue._search.groups]
    assert suspected == [[0, 2], [3], [4]]


def test_what_is_kept_is_as_large_as_it_need_be(tmp_path: Path) -> None:
    path = path_of("/out", "actor")
    assert path != path_of("/out", "another")
    rows = CrashLog(tmp_path / "begun")
    rows.prepare(range(5000))
    for ordinal in range(0, 5000, 2):
        rows.begin(ordinal)
    rows.end(range(1, 5000, 2))
    rows.prepare([10**12])
    size = (tmp_path / "begun").stat().st_size
    for ordinal in range(5000, 7000):
        rows.begin(ordinal)
    assert (tmp_path / "begun").stat().st_size == size
    left = left_by_the_last(tmp_path / "begun")
    assert left is not None
    assert sorted(left.in_engine) == [*range(0, 5000, 2), *range(5000, 7000)]
    assert left.in_preparation.tolist() == [10**12]
    assert left_by_the_last(tmp_path / "begun") is None


def test_what_killed_jobs_have_left_is_deleted_by_a_later_one(world: World, tmp_path: Path) -> None:
    """And nothing of its own stays on the node when all is done."""
    left, recent = tmp_path / "raybatch-begun-left", tmp_path / "raybatch-begun-recent"
    left.touch()
    recent.touch()
    os.utime(left, (0, 0))
    write(world, ROWS, "kill")
    world.run()
    assert list(tmp_path.glob("raybatch-begun-*")) == [recent]


def test_full_disk_does_not_stop_the_replica(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then it records no rows, and all rows of the process are suspected."""
    rows = CrashLog(tmp_path / "begun")
    rows.begin(1)

    def full(*args: Any) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(crash_log, "_lengthen", full)
    rows.prepare(range(5000))
    rows.end(range(5000))
    CrashLog(tmp_path / "another").begin(1)
    assert not list(tmp_path.iterdir())


class TestAnothersFile:
    """Anyone on the node can tell the file's name beforehand, and put something there."""

    @pytest.mark.parametrize("is_link", [True, False])
    def test_a_file_is_neither_read_nor_written(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_link: bool
    ) -> None:
        theirs, path = tmp_path / "theirs", tmp_path / "begun"
        theirs.write_bytes(np.int64(5).tobytes())
        if is_link:
            path.symlink_to(theirs)
            assert left_by_the_last(path) is None
        else:
            theirs.rename(path)
        monkeypatch.setattr(Path, "unlink", refuse)  # as in /tmp, whose sticky bit keeps others' files there
        rows = CrashLog(path)
        rows.begin(1)
        assert path.read_bytes() == np.int64(5).tobytes()
        assert rows.now().in_engine.tolist() == [1]

    def test_one_of_another_user_or_kind_tells_nothing(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        os.mkfifo(tmp_path / "pipe")
        assert left_by_the_last(tmp_path / "pipe") is None
        path = tmp_path / "begun"
        path.write_bytes(np.int64(5).tobytes())
        monkeypatch.setattr(os, "getuid", lambda: 12345)
        assert left_by_the_last(path) is None

    def test_log_is_readable_by_its_user_alone(self, tmp_path: Path) -> None:
        CrashLog(tmp_path / "begun").begin(1)
        assert (tmp_path / "begun").stat().st_mode & 0o777 == 0o600


def refuse(*args: Any, **kwargs: Any) -> None:
    raise PermissionError(errno.EPERM, "Operation not permitted")
