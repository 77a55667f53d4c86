# SPDX-License-Identifier: Apache-2.0
"""What fails a row with images, and what fails the job: Ray tasks that end badly."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
import ray

from airflow_provider_raybatch.contract.failures import RaybatchError
from airflow_provider_raybatch.job.input.listing import Listing
from airflow_provider_raybatch.job.media.allowed import ImageAccess
from airflow_provider_raybatch.job.media.load import Loaded
from airflow_provider_raybatch.job.replica import row_images
from airflow_provider_raybatch.job.replica.inflight import Row
from airflow_provider_raybatch.job.replica.request_builder import PreparedRow
from airflow_provider_raybatch.job.replica.row_images import RowImages
from airflow_provider_raybatch.job.row import Image, RowFailure
from airflow_provider_raybatch.job.work import Stopwatch
from airflow_provider_raybatch.storage.errors import StorageError
from tests.support.pictures import asking_about, picture
from tests.support.specs import spec

Load = Callable[[Sequence[Image], ImageAccess], Any]


class Engine:
    """Gives a request its images as soon as it may; `begun` says that it wants to."""

    def __init__(self) -> None:
        self.begun, self.may = threading.Event(), threading.Event()
        self.may.set()

    def attach(self, encoded: Any, pixels: Any) -> Any:
        self.begun.set()
        self.may.wait(60)
        return encoded


class Replica:
    """With a single thread for all that is short."""

    def __init__(self, job: Any) -> None:
        self.job, self.engine = job, Engine()
        self.plan = SimpleNamespace(replicas=1)
        builder = SimpleNamespace(keyed=lambda prepared, images: prepared)
        self.questions = [SimpleNamespace(builder=builder)]
        self.begun = SimpleNamespace(begin=lambda ordinal: None)
        self._threads = ThreadPoolExecutor(1)

    async def thread(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._threads, function, *arguments)


def stage(load: Load, monkeypatch: pytest.MonkeyPatch) -> RowImages:
    """Loads images by `load`, for which a row has a tenth of a second."""
    monkeypatch.setattr(row_images, "load", load)
    job = SimpleNamespace(
        spec=spec(images="image", image_timeout=0.1), listing=Listing("parquet", ()), credentials=None
    )
    replica: Any = Replica(job)
    return RowImages(replica, Stopwatch())


def row() -> Row:
    rows: Any = None
    return Row(0, 0, PreparedRow(asking_about("What is that?")), rows, 0, encoded="x")


def loaded(images: Sequence[Image], access: ImageAccess) -> Loaded:
    return Loaded([picture()], tuple(images))


@pytest.fixture(autouse=True)
def _quick(ray_here: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_images, "_PAUSE", 0.0)
    monkeypatch.setattr(row_images, "_PAUSE_OF_MEMORY", 0.0)


async def test_a_store_that_is_away_fails_no_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is waited for as for any other file, which takes longer than an image may."""

    def waits_for_the_store(images: Sequence[Image], access: ImageAccess) -> Loaded:
        time.sleep(20 * access.timeout)
        raise StorageError("s3://lake/a.png: can't read it.")

    monkeypatch.setattr(row_images, "_STARTING", 0.0)
    with pytest.raises(StorageError, match=r"s3://lake/a\.png"):
        await stage(waits_for_the_store, monkeypatch).load(row())


async def test_an_image_that_never_ends_fails_its_row(monkeypatch: pytest.MonkeyPatch) -> None:
    def hangs(images: Sequence[Image], access: ImageAccess) -> Loaded:
        time.sleep(3600)
        raise AssertionError

    monkeypatch.setattr(row_images, "_STARTING", 0.0)
    monkeypatch.setattr(row_images, "_PATIENCE", 0.0)
    images = stage(hangs, monkeypatch)

    failure = await images.load(row())

    assert isinstance(failure, RowFailure)
    assert failure.step == "media"
    assert images.has_room


@pytest.mark.thorough("an environment that can't be made; Ray tries for long")
async def test_a_node_without_its_environment_fails_no_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """All rows that Ray sends there would fail alike."""
    images = stage(loaded, monkeypatch)
    images._task = images._task.options(runtime_env={"conda": "of-no-node"})

    with pytest.raises((ray.exceptions.RuntimeEnvSetupError, RaybatchError)):
        await images.load(row())


async def test_a_row_survives_a_node_without_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray ends tasks of a node without memory, whatever took it."""
    paused: list[float] = []
    result = row_images._result

    async def killed_at_first(reference: Any) -> Any:
        if len(paused) < 2:
            raise ray.exceptions.OutOfMemoryError("killed")
        return await result(reference)

    async def pause(seconds: float) -> None:
        paused.append(seconds)

    monkeypatch.setattr(row_images, "_PAUSE_OF_MEMORY", 7.0)
    monkeypatch.setattr(row_images, "_result", killed_at_first)
    monkeypatch.setattr("asyncio.sleep", pause)

    assert await stage(loaded, monkeypatch).load(row()) is None
    assert paused == [7.0, 14.0]


async def test_a_slow_processor_delays_no_other_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are read and written in the few threads of the replica."""
    images = stage(loaded, monkeypatch)
    replica: Any = images._replica
    replica.engine.may.clear()
    loading = images.load(row())
    await asyncio.to_thread(replica.engine.begun.wait, 60)

    try:
        await asyncio.wait_for(replica.thread(int), 10)
    finally:
        replica.engine.may.set()

    assert await loading is None
