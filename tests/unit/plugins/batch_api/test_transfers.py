# SPDX-License-Identifier: Apache-2.0
"""Uploads and downloads at once are bounded, for each user and for all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from fastapi import Response

from airflow_provider_raybatch.plugins.batch_api.errors import OpenAiError
from airflow_provider_raybatch.plugins.batch_api.transfers import InSlot, TransferSlots


def slots(**given: Any) -> TransferSlots:
    return TransferSlots(**{"what": "uploads", "at_once": 2, "of_user": 1, "seconds": 0.05, **given})


async def test_a_user_who_has_all_slots_waits(monkeypatch: pytest.MonkeyPatch) -> None:
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
        with pytest.raises(OpenAiError, match="1 are served") as refusal:
            async with place.slot("ann"):
                raise AssertionError
    assert (refusal.value.status, refusal.value.headers) == (429, {"Retry-After": "5"})
    async with place.slot("ann"):
        pass


async def test_a_server_without_slots_says_so() -> None:
    place = slots(of_user=2)
    async with place.slot("ann"), place.slot("ann"):
        with pytest.raises(OpenAiError, match="too many uploads") as refusal:
            async with place.slot("bob"):
                raise AssertionError
        assert refusal.value.status == 503
    async with place.slot("bob"):
        pass


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


async def test_users_without_transfers_are_forgotten() -> None:
    place = slots()
    for number in range(3):
        async with place.slot(f"user {number}"):
            pass
    assert not place._users


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
