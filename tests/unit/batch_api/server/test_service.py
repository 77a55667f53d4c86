# SPDX-License-Identifier: Apache-2.0
"""Calls of storage beside the event loop."""

from __future__ import annotations

import asyncio
import threading

import pytest

from airflow_provider_raybatch.batch_api.server import service as module
from airflow_provider_raybatch.batch_api.server.limits import ApiLimits
from airflow_provider_raybatch.batch_api.server.objects import OpenAiError
from airflow_provider_raybatch.batch_api.server.service import BatchService
from airflow_provider_raybatch.batch_api.store.settings import BatchApiSettings
from airflow_provider_raybatch.batch_api.store.store import BatchStore
from airflow_provider_raybatch.contract.failures import RaybatchError
from airflow_provider_raybatch.plugins.web import OwnThreads
from airflow_provider_raybatch.storage.folder import LocalFolder

SECRET = b"a secret of the tests, long enough"


@pytest.fixture
def service(disk: LocalFolder) -> BatchService:
    return BatchService(BatchApiSettings(disk.uri, None, SECRET), ApiLimits())


async def test_a_call_has_the_store_in_a_thread(service: BatchService, disk: LocalFolder) -> None:
    def call(store: BatchStore, number: int) -> tuple[str, int, str]:
        return store.root.uri, number, threading.current_thread().name

    uri, number, thread = await service.call(call, 7)
    assert (uri, number) == (disk.uri, 7)
    assert thread.startswith("raybatch-batches")


async def test_too_many_calls_are_refused_and_others_go_on(service: BatchService) -> None:
    service._threads = OwnThreads("raybatch-batches", threads=1, waiting=1, seconds=30)
    go = threading.Event()

    def wait(store: BatchStore) -> bool:
        return go.wait(30)

    first, second = (asyncio.ensure_future(service.call(wait)) for _ in range(2))
    await asyncio.sleep(0)
    with pytest.raises(OpenAiError, match="too many requests") as refusal:
        await service.call(wait)
    assert (refusal.value.status, refusal.value.headers) == (503, {"Retry-After": "5"})
    go.set()
    assert await asyncio.gather(first, second) == [True, True]
    assert await service.call(wait)


async def test_storage_that_is_silent_is_not_waited_for(service: BatchService) -> None:
    """A call that has not begun when its client is refused never begins, so it makes no batch."""
    service._threads = OwnThreads("raybatch-batches", threads=1, waiting=1, seconds=0.05)
    go, late = threading.Event(), list[BatchStore]()
    for call in (lambda store: go.wait(30), late.append):
        with pytest.raises(OpenAiError, match="did not answer in time") as refusal:
            await service.call(call)
        assert refusal.value.status == 503
    go.set()
    service._threads._pool.shutdown()
    assert late == []


async def test_refusals_pass_and_failures_are_for_the_log(
    service: BatchService, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(store: BatchStore) -> None:
        raise OpenAiError(404, "There is none.")

    def fail(store: BatchStore) -> None:
        raise RaybatchError("s3://bucket: it does not answer.")

    with pytest.raises(OpenAiError, match="There is none"):
        await service.call(refuse)
    with pytest.raises(OpenAiError, match="the log of Airflow's API server says why") as refusal:
        await service.call(fail)
    assert refusal.value.status == 503
    assert "s3://bucket" in caplog.text


async def test_credentials_are_renewed(service: BatchService, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of a role end; a store is used for ten minutes."""
    now = 1000.0
    monkeypatch.setattr(module.time, "monotonic", lambda: now)
    first = service.store()
    now += 590
    assert service.store() is first
    now += 20
    assert service.store() is not first


async def test_an_unusable_connection_is_tried_again(
    disk: LocalFolder, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    service = BatchService(BatchApiSettings("s3://bucket/root", "later", SECRET), ApiLimits())
    with pytest.raises(OpenAiError) as refusal:
        await service.call(lambda store: store)
    assert refusal.value.status == 503
    assert "'later' doesn't exist" in caplog.text
    monkeypatch.setenv("AIRFLOW_CONN_LATER", "aws://key:secret@")
    assert (await service.call(lambda store: store)).root.uri == "s3://bucket/root"
