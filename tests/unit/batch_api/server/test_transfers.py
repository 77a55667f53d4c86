# SPDX-License-Identifier: Apache-2.0
"""Uploads and downloads at once are bounded, for each user and for all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from fastapi import Response

from airflow_provider_raybatch.batch_api.server.objects import OpenAiError
from airflow_provider_raybatch.batch_api.server.transfers import InSlot, TransferSlots
from airflow_provider_raybatch.storage.folder import LocalFolder
from tests.support.airflow_server import token
from tests.support.batch_api import uploaded
from tests.support.batch_server import LINE, BatchServer, store_of_server
from tests.support.forms import CONTENT_TYPE, PURPOSE, file_part, form


def slots(**given: Any) -> TransferSlots:
    return TransferSlots(**{"what": "uploads", "at_once": 2, "of_user": 1, "seconds": 0.05, **given})


async def test_a_user_who_has_all_slots_waits() -> None:
    place, order = slots(seconds=30), list[str]()

    async def second() -> None:
        async with place.slot("ann"):
            order.append("second")

    async with place.slot("ann"):
        waiting = asyncio.ensure_future(second())
        async with place.slot("bob"):
            order.append("bob")
        order.append("first")
    await waiting
    assert order == ["bob", "first", "second"]


async def test_a_user_who_waits_too_long_is_refused() -> None:
    place = slots()
    async with place.slot("ann"):
        with pytest.raises(OpenAiError, match="no more uploads of yours") as refusal:
            async with place.slot("ann"):
                raise AssertionError
    assert (refusal.value.status, refusal.value.headers) == (429, {"Retry-After": "5"})
    async with place.slot("ann"):
        pass


async def test_a_server_without_slots_says_so() -> None:
    place = slots()
    async with place.slot("ann"), place.slot("cat"):
        with pytest.raises(OpenAiError, match="too many uploads") as refusal:
            async with place.slot("bob"):
                raise AssertionError
        assert refusal.value.status == 503
    async with place.slot("bob"):
        pass


@pytest.mark.parametrize(("at_once", "of_user", "taken"), [(24, 8, [8, 4, 1, 1]), (64, 16, [16, 16, 1, 1])])
async def test_later_transfers_of_a_user_leave_half_for_others(
    at_once: int, of_user: int, taken: list[int]
) -> None:
    """Each user asks for all that one may have; the server goes on to take first ones of others."""
    place = slots(at_once=at_once, of_user=of_user, seconds=30)
    asked = [asyncio.ensure_future(place.slot(user).__aenter__()) for user in "abcd" for _ in range(of_user)]
    done, waiting = await asyncio.wait(asked, timeout=0)
    while len(done) < sum(taken):
        done, waiting = await asyncio.wait(asked, timeout=0)
    assert [place._begun[user] for user in "abcd"] == taken
    for one in waiting:
        one.cancel()
    await asyncio.wait(asked)


async def test_few_wait_for_a_slot() -> None:
    place = slots(waiting=1, seconds=30)
    async with place.slot("ann"):
        waiting = asyncio.ensure_future(place.slot("ann").__aenter__())
        await asyncio.sleep(0)
        with pytest.raises(OpenAiError) as refusal:
            async with place.slot("ann"):
                raise AssertionError
        assert refusal.value.status == 429
        waiting.cancel()
        await asyncio.wait([waiting])


async def test_an_answer_has_its_slot_until_it_is_sent() -> None:
    events = []

    @asynccontextmanager
    async def slot() -> AsyncIterator[None]:
        events.append("begun")
        yield
        events.append("ended")

    async def make() -> Response:
        return Response(b"content")

    async def send(message: Any) -> None:
        events.append(message["type"])

    async def receive() -> Any:
        raise AssertionError

    await InSlot(slot(), make)({"type": "http"}, receive, send)
    assert events == ["begun", "http.response.start", "http.response.body", "ended"]


class SlowClient:
    """Sends the beginning of an upload, or takes that of a file, and then nothing more."""

    def __init__(self, api: BatchServer, method: str, user: str) -> None:
        self.messages: list[Any] = []
        self._begins = method == "POST"
        path = "/files"
        if method == "GET":
            path += f"/{uploaded(store_of_server(), LINE, owner=user).id}/content"
        headers = {"authorization": f"Bearer {token(user)}", "content-type": CONTENT_TYPE}
        scope = {
            "type": "http", "method": method, "path": path, "raw_path": path.encode(), "query_string": b"",
            "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
            "http_version": "1.1", "scheme": "http",
        }  # fmt: skip
        self.answered = asyncio.ensure_future(api.app(scope, self._receive, self._send))

    async def _receive(self) -> Any:
        if not self._begins:
            await asyncio.Event().wait()
        self._begins = False
        return {"type": "http.request", "body": form(PURPOSE, file_part(LINE))[:-9], "more_body": True}

    async def _send(self, message: Any) -> None:
        self.messages.append(message)
        if message["type"] == "http.response.body" and self.messages[0]["status"] == 200:
            await asyncio.Event().wait()


@pytest.mark.parametrize(("method", "users"), [("POST", "admin bob cat"), ("GET", "admin bob cat viewer")])
async def test_slow_clients_of_some_users_block_no_other(
    on_disk: BatchServer, method: str, users: str
) -> None:
    service = on_disk.app.state.service
    place, of_user = (service.uploads, 8) if method == "POST" else (service.downloads, 16)
    slow = [SlowClient(on_disk, method, user) for user in users.split() for _ in range(of_user)]
    while place._asked.total() < len(slow):
        await asyncio.wait([one.answered for one in slow], timeout=0.01)
    login = {"Authorization": f"Bearer {token('ann')}"}
    transport = httpx.ASGITransport(on_disk.app)
    async with httpx.AsyncClient(transport=transport, base_url="http://server", headers=login) as client:
        sent = await client.post("/files", data={"purpose": "batch"}, files={"file": ("a.jsonl", LINE)})
        assert sent.status_code == 200
        taken = await client.get(f"/files/{sent.json()['id']}/content")
        assert (taken.status_code, taken.content) == (200, LINE)
    for one in slow:
        one.answered.cancel()
    await asyncio.wait([one.answered for one in slow])
    assert not place._asked
    assert not place._begun


@pytest.mark.parametrize("method", ["POST", "GET"])
async def test_a_transfer_that_does_not_end_is_given_up(
    on_disk: BatchServer, disk: LocalFolder, method: str
) -> None:
    service = on_disk.app.state.service
    service.uploads = service.downloads = slots(seconds=30, longest=0.05)
    client = SlowClient(on_disk, method, "ann")
    if method == "GET":  # its answer has begun
        with pytest.raises(Exception, match="req_"):
            await client.answered
        return
    await client.answered
    assert client.messages[0]["status"] == 408
    assert b"The server ends uploads after" in client.messages[1]["body"]
    assert disk.list() == []
