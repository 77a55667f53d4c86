# SPDX-License-Identifier: Apache-2.0
"""Rows that wait for another row's answer, where replies of the coordinator come in any order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_raybatch.job.input.chunk_rows import ChunkRows
from airflow_provider_raybatch.job.parts.part import Part
from airflow_provider_raybatch.job.replica.inflight import Row
from airflow_provider_raybatch.job.replica.request_builder import PreparedRow
from airflow_provider_raybatch.job.replica.shared_requests import Found, SharedRequests
from airflow_provider_raybatch.job.row import Image, Request, RowFailure

PART = Part("parts/a-1-000001.10.0-0.1.1.parquet", 1, 1, 0, 0, 10)
ROWS = ChunkRows([], None)  # type: ignore[arg-type]


def row(ordinal: int, key: bytes = b"k" * 16) -> Row:
    return Row(ordinal, ordinal, PreparedRow(Request(prompt="x"), key, is_shared=True), ROWS, 0)


class Replica:
    """Answers come when the test gives them; parts have all."""

    def __init__(self) -> None:
        self.replies: list[asyncio.Future[Any]] = []
        self.landed: list[tuple[Row, Any]] = []
        self.process = "a"
        self.coordinator = SimpleNamespace(claim=SimpleNamespace(remote=self.claim))
        self.asker = SimpleNamespace(shared_answers=SimpleNamespace(of=lambda step, part, key: part.path))
        self.shared = SharedRequests(self, SimpleNamespace(land=self.land))  # type: ignore[arg-type]

    def claim(self, process: str, keys: list[bytes]) -> asyncio.Future[Any]:
        self.replies.append(asyncio.get_running_loop().create_future())
        return self.replies[-1]

    def land(self, row: Row, answer: Any) -> None:
        self.landed.append((row, answer))

    async def thread(self, function: Callable[..., Any], *given: Any) -> Any:
        return function(*given)


async def begun(replica: Replica, *rows: Row) -> asyncio.Task[tuple[list[Row], list[Found]]]:
    task = asyncio.ensure_future(replica.shared.to_ask(rows))
    await asyncio.sleep(0)
    return task


@pytest.mark.parametrize("late", [False, True])
def test_an_answer_is_heard_before_or_after_the_claims_reply(late: bool) -> None:
    async def story() -> None:
        replica, one = Replica(), row(0)
        asking = await begun(replica, one)
        if late:
            assert await replica.shared.heard([(b"k" * 16, PART)]) == []
        replica.replies[0].set_result([False])
        assert await asking == ([], [(PART, one)] if late else [])
        if late:
            assert await replica.shared.land([(PART, one)]) == []
        else:
            await replica.shared.heard([(b"k" * 16, PART)])
        assert replica.landed == [(one, PART.path)]
        assert (replica.shared.waiting, replica.shared._told) == (0, {})

    asyncio.run(story())


def test_a_key_that_became_free_meanwhile_is_claimed_again() -> None:
    async def story() -> None:
        replica, one = Replica(), row(0)
        asking = await begun(replica, one)
        assert replica.shared.take_over([b"k" * 16]) == ([b"k" * 16], [])
        replica.replies[0].set_result([False])
        await asyncio.sleep(0.01)
        replica.replies[1].set_result([True])
        assert await asking == ([one], [])
        assert one.claimed == b"k" * 16

    asyncio.run(story())


def test_equal_rows_of_two_batches_wait_for_one() -> None:
    async def story() -> None:
        replica, rows = Replica(), [row(number) for number in range(4)]
        first, second = await begun(replica, *rows[:2]), await begun(replica, *rows[2:])
        replica.replies[0].set_result([True])
        replica.replies[1].set_result([False])
        assert (await first, await second) == (([rows[0]], []), ([], []))
        assert replica.shared.waiting == 3
        assert replica.shared.given_back([rows[0]]) == ([], [rows[1]])
        (followers,) = replica.shared.followers([rows[1]]).values()
        assert {one.ordinal for one in followers} == {2, 3}
        assert await replica.shared.written([(PART, [b"k" * 16])]) == []
        fourth = row(4)
        assert await replica.shared.to_ask([fourth]) == ([], [(PART, fourth)])

    asyncio.run(story())


@pytest.mark.parametrize("how", ["changed", "gone"])
def test_a_row_whose_image_is_another_leads_equal_places(how: str) -> None:
    """The copy is asked by itself."""

    def about(ordinal: int, uri: str) -> Row:
        request = Request(prompt="x", images=(Image(uri=uri, version="1"),))
        return Row(ordinal, ordinal, PreparedRow(request, b"k" * 16, is_shared=True), ROWS, 0)

    async def story() -> None:
        replica, rows = Replica(), [about(0, "a"), about(1, "a"), about(2, "copy")]
        asking = await begun(replica, *rows)
        replica.replies[0].set_result([True])
        assert await asking == ([rows[0]], [])
        if how == "changed":
            rows[0].prepared = replace(rows[0].prepared, key=b"n" * 16)
        else:
            rows[0].result = RowFailure("media", "it can't be read", is_of_reference=True)
        assert replica.shared.followers([rows[0]]) == {rows[0]: [rows[1]]}
        assert rows[1].prepared.key == rows[0].prepared.key
        assert replica.shared.given_back(replica.shared.changed(rows)) == ([], [rows[2]])
        assert replica.shared.given_back([rows[2]]) == ([b"k" * 16], [])

    asyncio.run(story())
