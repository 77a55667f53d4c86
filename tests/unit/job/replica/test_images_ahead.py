# SPDX-License-Identifier: Apache-2.0
"""Rows whose images are loaded ahead of their turn, and no earlier than that."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import ray

from airflow_provider_raybatch.job.engine.base import EngineDeadError
from airflow_provider_raybatch.job.input.listing import Listing
from airflow_provider_raybatch.job.media.load import Loaded
from airflow_provider_raybatch.job.monitor.replica_progress import ReplicaProgress
from airflow_provider_raybatch.job.replica import row_images
from airflow_provider_raybatch.job.replica.crash_log import CrashLog
from airflow_provider_raybatch.job.replica.inflight import InflightRequests, Row
from airflow_provider_raybatch.job.replica.request_builder import PreparedRow
from airflow_provider_raybatch.job.replica.row_images import RowImages
from airflow_provider_raybatch.job.row import Image, Request, RowFailure
from airflow_provider_raybatch.job.work import Stopwatch
from tests.support.specs import spec

MOST, AHEAD = 4, 3
FAILURE = RowFailure("media", "it is no picture")


class Engine:
    """Answers when it is told to; `asked` are the rows that it has got."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.requests: list[asyncio.Future[None]] = []

    async def generate(self, encoded: Any) -> Any:
        self.asked.append(encoded)
        request: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.requests.append(request)
        await request

    def tokens(self, raw: Any) -> tuple[int, int]:
        return 1, 1


class Stage:
    """Loads a few rows at a time, each when it is told to."""

    def __init__(self) -> None:
        self.held = 0
        self.loading: dict[int, asyncio.Future[RowFailure | None]] = {}

    @property
    def has_room(self) -> bool:
        return self.held < AHEAD

    def load(self, row: Row) -> asyncio.Future[RowFailure | None]:
        self.held += 1
        self.loading[row.ordinal] = asyncio.get_running_loop().create_future()
        return self.loading[row.ordinal]

    def entered(self) -> None:
        self.held -= 1

    def end(self, ordinal: int, result: RowFailure | BaseException | None = None) -> None:
        """A row's images are loaded, or fail."""
        loading = self.loading.pop(ordinal)
        if isinstance(result, BaseException):
            loading.set_exception(result)
            return
        self.held -= result is not None
        loading.set_result(result)


class Rows:
    """The rows of one engine."""

    def __init__(self, folder: Path) -> None:
        self.engine, self.stage, self.watch = Engine(), Stage(), Stopwatch()
        report = ReplicaProgress("replica", "node", "ready", started=0.0)
        begun = CrashLog(folder / "begun")
        engine: Any = self.engine
        self.inflight = InflightRequests(
            engine, report, MOST, False, False, self.watch, lambda: None, begun, self.stage
        )

    def add(self, ordinals: Sequence[int], has_images: bool = True) -> None:
        images = (Image(content=b"a picture"),) if has_images else ()
        prepared = PreparedRow(Request(prompt="x", images=images))
        rows: Any = None
        self.inflight.add(Row(number, number, prepared, rows, 0, encoded=number) for number in ordinals)


async def settled() -> None:
    """Let callbacks run."""
    for _ in range(5):
        await asyncio.sleep(0)


async def test_rows_are_loaded_ahead_and_enter_when_they_are_ready(tmp_path: Path) -> None:
    rows = Rows(tmp_path)
    rows.add(range(10))
    await settled()
    assert (sorted(rows.stage.loading), rows.engine.asked) == ([0, 1, 2], [])

    rows.stage.end(1)  # one that is quick passes one that is slow
    await settled()

    assert (sorted(rows.stage.loading), rows.engine.asked) == ([0, 2, 3], [1])
    assert rows.inflight.unanswered == 10
    assert [row.ordinal for row in rows.inflight.waiting] == [4, 5, 6, 7, 8, 9]  # others may get these


async def test_no_more_is_loaded_than_waits_for_room(tmp_path: Path) -> None:
    rows = Rows(tmp_path)
    rows.add(range(20))
    for _ in range(20):
        await settled()
        for ordinal in list(rows.stage.loading):
            rows.stage.end(ordinal)
    assert len(rows.engine.asked) == MOST
    assert (rows.stage.held, len(rows.inflight.waiting)) == (AHEAD, 20 - MOST - AHEAD)

    rows.engine.requests[0].set_result(None)
    await settled()

    assert len(rows.engine.asked) == MOST + 1
    assert len(rows.stage.loading) == 1  # the next one, since there is room again


async def test_a_row_without_its_images_fails_alone(tmp_path: Path) -> None:
    rows = Rows(tmp_path)
    rows.add(range(5))
    await settled()

    rows.stage.end(0, FAILURE)
    await settled()

    assert [(row.ordinal, row.result) for row in rows.inflight.take()] == [(0, FAILURE)]
    assert sorted(rows.stage.loading) == [1, 2, 3]
    assert rows.inflight.error is None


async def test_rows_without_images_need_no_loading(tmp_path: Path) -> None:
    rows = Rows(tmp_path)
    rows.add([0, 1], has_images=False)
    rows.add([2, 3])
    rows.add([4, 5], has_images=False)
    await settled()
    assert (rows.engine.asked, sorted(rows.stage.loading)) == ([0, 1, 4, 5], [2, 3])


@pytest.mark.parametrize("error", [EngineDeadError("It died."), OSError("a storage")])
async def test_what_stops_the_loading_stops_the_replica(tmp_path: Path, error: Exception) -> None:
    rows = Rows(tmp_path)
    rows.add(range(5))
    await settled()

    rows.stage.end(0, error)
    await settled()

    assert rows.inflight.error is error
    assert not rows.inflight.landed


async def test_the_end_cancels_what_is_being_loaded(tmp_path: Path) -> None:
    rows = Rows(tmp_path)
    rows.add(range(5))
    await settled()
    loading = list(rows.stage.loading.values())

    with contextlib.suppress(asyncio.CancelledError):
        await rows.inflight.cancel()

    assert all(one.cancelled() for one in loading)
    assert not rows.inflight.landed


async def test_no_row_enters_after_the_end(tmp_path: Path) -> None:
    """Its answer would be paid for and lost."""
    rows = Rows(tmp_path)
    rows.add(range(MOST + 2))
    for ordinal in range(MOST + 1):
        await settled()
        rows.stage.end(ordinal)
    await settled()  # the last one waits for room
    asked = list(rows.engine.asked)
    rows.stage.end(MOST + 1)
    rows.engine.requests[0].set_result(None)
    await asyncio.sleep(0)  # both have ended, and no callback has run

    with contextlib.suppress(asyncio.CancelledError):
        await rows.inflight.cancel()
    await settled()

    assert rows.engine.asked == asked


async def test_only_time_with_room_for_a_row_is_a_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    rows = Rows(tmp_path)
    rows.add(range(8))
    await settled()
    for ordinal in range(MOST):
        now += 1  # the engine has room, and waits for pictures
        rows.stage.end(ordinal)
        await settled()
    now += 10  # it is full
    for ordinal in list(rows.stage.loading):
        rows.stage.end(ordinal)
    await settled()

    assert rows.watch.seconds["wait_for_images"] == MOST


class Cluster:
    """Stands for Ray, whose tasks decode: `answer` is what each one returns or raises."""

    exceptions = ray.exceptions

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def put(self, value: Any) -> Any:
        return value

    def cluster_resources(self) -> dict[str, float]:
        return {}

    def remote(self, **_: Any) -> Any:
        async def task() -> Any:
            if isinstance(self.answer, Exception):
                raise self.answer
            return self.answer

        return lambda function: SimpleNamespace(remote=lambda images, access: task())


def row_images_of(folder: Path, cluster: Cluster, attached: Any, patch: pytest.MonkeyPatch) -> RowImages:
    """The images of a replica whose engine makes `attached` of each row's pixels."""
    patch.setattr(row_images, "ray", cluster)
    patch.setattr(row_images, "_PAUSE", 0.0)
    replica: Any = SimpleNamespace(
        job=SimpleNamespace(spec=spec(images="image"), listing=Listing("parquet", ()), credentials=None),
        plan=SimpleNamespace(replicas=1),
        questions=[SimpleNamespace(builder=SimpleNamespace(keyed=lambda prepared, images: prepared))],
        begun=CrashLog(folder / "begun"),
        engine=SimpleNamespace(attach=lambda encoded, pixels: attached),
    )
    return RowImages(replica, Stopwatch())


async def loads_all_it_has_room_for(images: RowImages) -> list[RowFailure | None]:
    loading, rows = [], cast(Any, None)
    while images.has_room:
        prepared = PreparedRow(Request(prompt="x", images=(Image(content=b"a picture"),)))
        loading.append(images.load(Row(0, 0, prepared, rows, 0)))
    return await asyncio.gather(*loading)


@pytest.mark.parametrize(
    ("answer", "attached"),
    [
        (FAILURE, "encoded"),
        (Loaded([], ()), FAILURE),
        (ray.exceptions.WorkerCrashedError(), "encoded"),
    ],
    ids=["is no picture", "the engine refuses it", "ends the process that decodes it"],
)
async def test_a_broken_picture_makes_room_for_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: Any, attached: Any
) -> None:
    """It never enters the engine, so without that a few of them would stop the replica."""
    images = row_images_of(tmp_path, Cluster(answer), attached, monkeypatch)
    for _ in range(2):
        failures = await loads_all_it_has_room_for(images)
        assert len(failures) == row_images._FEWEST
        assert all(isinstance(one, RowFailure) for one in failures)
        assert images.has_room


async def test_a_good_picture_keeps_its_place_until_it_enters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = row_images_of(tmp_path, Cluster(Loaded([], ())), "encoded", monkeypatch)
    assert await loads_all_it_has_room_for(images) == [None] * row_images._FEWEST
    assert not images.has_room
    images.entered()
    assert images.has_room
