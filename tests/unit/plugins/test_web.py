# SPDX-License-Identifier: Apache-2.0
"""Reports are read in a few threads of their own."""

from __future__ import annotations

import asyncio
import threading

import pytest

from airflow_provider_raybatch.plugins.reading import NotShownError
from airflow_provider_raybatch.plugins.web import Readers


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
