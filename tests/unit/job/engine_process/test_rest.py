# SPDX-License-Identifier: Apache-2.0
"""An engine whose process rests between two jobs."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.job.engine.base import EngineDeadError
from airflow_provider_raybatch.job.engine.echo import EchoEngine
from airflow_provider_raybatch.job.engine_process.front_end import OwnFrontEnd
from airflow_provider_raybatch.job.engine_process.proxy import EngineProxy
from airflow_provider_raybatch.job.engine_process.server import RESTS
from airflow_provider_raybatch.job.row import Request
from tests.support.engine_proxy import HANGS, answers, asking
from tests.support.specs import spec


class Resting(OwnFrontEnd):
    """A process that lets its engine rest where others end."""

    def __init__(self) -> None:
        super().__init__(of_vllm=False)
        self.rests = threading.Event()

    def receive(self) -> Any:
        message = super().receive()
        if message == RESTS:
            self.rests.set()
            raise EOFError
        return message

    def end(self, is_open: bool) -> None:
        self.send([(0, "rest", None)])
        assert self.rests.wait(30)

    def kill(self) -> None:
        if not self.rests.is_set():
            super().kill()


class Opened(EchoEngine):
    """Tells, as its size, how often an engine was opened in this process."""

    opened = 0

    def __init__(self, asked: BatchInferenceSpec) -> None:
        Opened.opened += 1
        super().__init__(asked)

    def tokens_in_flight(self) -> int:
        return Opened.opened


def test_an_engine_that_rests_answers_for_the_next() -> None:
    front_end = Resting()
    first = EngineProxy(front_end)
    first.open(asking(**HANGS), Opened)
    (stuck,) = first.encode([Request(prompt="forever")])

    async def leave() -> None:
        request = asyncio.ensure_future(first.generate(stuck))
        await asyncio.sleep(0.1)
        first.close()
        with pytest.raises(EngineDeadError):
            await request

    asyncio.run(asyncio.wait_for(leave(), 60))
    front_end.rests.clear()
    later = EngineProxy(front_end)
    later.open(spec(engine="echo", engine_args=HANGS, sampling={"max_tokens": 1}), Opened)
    assert later.tokens_in_flight() == 1
    ((made, tokens),) = answers(later, ["one two"])
    assert (made.completions[0].text, tokens) == ("one", (2, 1))
    OwnFrontEnd.end(front_end, True)
    assert not front_end.process.is_alive()


class Dies(EchoEngine):
    """Dies when its requests are over, as vLLM's processes may while it rests."""

    is_dead = True


def test_the_process_ends_with_an_engine_that_dies_at_rest() -> None:
    front_end = Resting()
    engine = EngineProxy(front_end)
    engine.open(asking(), Dies)
    assert answers(engine, ["one"])[0][1] == (1, 1)
    engine.close()
    front_end.process.join(30)
    assert front_end.process.exitcode == 0
