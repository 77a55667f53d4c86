# SPDX-License-Identifier: Apache-2.0
"""Reports are read in a few threads of their own."""

from __future__ import annotations

import asyncio
import threading

import pytest

from airflow_provider_raybatch.plugins.readers import Readers
from airflow_provider_raybatch.plugins.refusal import NotShownError


async def test_what_a_thread_returns_and_raises() -> None:
    def fail() -> None:
        raise NotShownError("no", 404)

    readers = Readers()
    assert await readers.run(lambda name: f"hello {name}", "you") == "hello you"
    with pytest.raises(NotShownError, match="no"):
        await readers.run(fail)


async def test_requests_beyond_the_queue_are_refused() -> None:
    """However many ask for reports, only a few threads wait for slow storage."""
    readers, free, at_work = Readers(threads=2, waiting=1), threading.Event(), []

    def read() -> str:
        at_work.append(threading.current_thread().name)
        free.wait(30)
        return "done"

    calls = [asyncio.create_task(readers.run(read)) for _ in range(3)]
    await asyncio.sleep(0)
    with pytest.raises(NotShownError, match="try again") as caught:
        await readers.run(read)
    assert caught.value.status == 503
    free.set()
    assert await asyncio.gather(*calls) == ["done"] * 3
    assert len(set(at_work)) <= 2
    assert await readers.run(read) == "done"


async def test_a_slow_read_is_answered_and_keeps_its_place() -> None:
    readers, free = Readers(threads=1, waiting=0, seconds=0.01), threading.Event()
    with pytest.raises(NotShownError, match="did not answer") as caught:
        await readers.run(free.wait, 30)
    assert caught.value.status == 504
    with pytest.raises(NotShownError, match="try again"):
        await readers.run(free.wait, 30)
    free.set()
    while True:
        await asyncio.sleep(0.01)
        try:
            assert await readers.run(lambda: "done") == "done"
        except NotShownError:
            continue
        break
