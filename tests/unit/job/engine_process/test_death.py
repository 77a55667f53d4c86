# SPDX-License-Identifier: Apache-2.0
"""The death of an engine's process is told to all who wait for it."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import Future
from typing import Any

import psutil
import pytest

from airflow_provider_raybatch.job.engine.base import EngineDeadError, EngineInfo
from airflow_provider_raybatch.job.engine.echo import EchoEngine
from airflow_provider_raybatch.job.engine_process.proxy import EngineProxy
from airflow_provider_raybatch.job.row import Request
from tests.support.engine_proxy import HANGS, asking
from tests.support.interleaved import Interruption


def test_death_is_told_to_callers_before_and_after(proxy: EngineProxy) -> None:
    proxy.open(asking(**HANGS), EchoEngine)
    (encoded,) = proxy.encode([Request(prompt="forever")])

    async def ask() -> list[Any]:
        waiting = [asyncio.ensure_future(proxy.generate(encoded)) for _ in range(3)]
        await asyncio.sleep(0.1)
        os.kill(proxy._front_end.process.pid or 0, signal.SIGKILL)
        return await asyncio.gather(*waiting, proxy.generate(encoded), return_exceptions=True)

    ended = asyncio.run(asyncio.wait_for(ask(), 30))
    assert [type(one) for one in ended] == [EngineDeadError] * 4
    assert all(one.killed for one in ended)
    with pytest.raises(EngineDeadError, match="exit code -9"):
        proxy.decode([])
    assert proxy.tokens_in_flight() == 0


class Dying:
    """A front end that opens an engine, and dies when it is let.

    :ivar calls: that it got and will not answer.
    """

    def __init__(self) -> None:
        self.dies = threading.Event()
        self.calls: list[Any] = []
        self._answers = iter([[(0, EngineInfo(), None)]])

    def prepare(self, identity: str) -> None:
        pass

    def send(self, message: Any) -> None:
        if isinstance(message, list):
            self.calls += message

    def receive(self) -> Any:
        for answer in self._answers:
            return answer
        assert self.dies.wait(30)
        raise EOFError

    def kill(self) -> None:
        pass

    def death(self) -> EngineDeadError:
        return EngineDeadError("it died")


def asks(proxy: EngineProxy) -> Future[Any]:
    """Ask it in a new thread."""
    answer = Future[Any]()

    def ask() -> None:
        try:
            answer.set_result(proxy.decode([]))
        except EngineDeadError as error:
            answer.set_exception(error)

    threading.Thread(target=ask, daemon=True).start()
    return answer


def dies_at(instruction: int) -> bool:
    """Let it die while a call waits; before this instruction of its end, another call has just begun.

    :returns: whether its end has so many.
    """
    front_end = Dying()
    proxy, answers = EngineProxy(front_end), list[Future[Any]]()
    has_begun, may_go_on = threading.Event(), threading.Event()

    def stop() -> None:
        has_begun.set()
        may_go_on.wait(60)

    def begin() -> None:
        waiting = len(proxy._awaited)
        with Interruption({"_await"}, 0, stop, lambda: len(proxy._awaited) > waiting).of_new_threads():
            answers.append(asks(proxy))
        assert has_begun.wait(60)

    end = Interruption({"_hear", "_resolve", "_tell"}, instruction, begin, front_end.dies.is_set)
    with end.of_new_threads():
        proxy.open(asking())
    hearing = next(one for one in threading.enumerate() if one.name == "raybatch-engine")
    answers.append(asks(proxy))
    while not front_end.calls:
        time.sleep(0.0001)
    front_end.dies.set()
    hearing.join(60)
    may_go_on.set()
    for one in answers:
        assert isinstance(one.exception(60), EngineDeadError)
    return end.was_reached


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_death_is_told_to_a_caller_meanwhile() -> None:
    """At any instant of it: three of 3,455 deaths left a call waiting for ever."""
    dies_at(0)  # Python 3.12 traces a function's instructions from its second call on
    instructions = next(number for number in itertools.count() if not dies_at(number))
    assert instructions > 20


def test_the_death_of_what_it_serves_is_told(proxy: EngineProxy) -> None:
    proxy.open(asking(kill_pattern="die"), EchoEngine)
    (encoded,) = proxy.encode([Request(prompt="die")])
    with pytest.raises(EngineDeadError, match="kill_pattern") as raised:
        asyncio.run(proxy.generate(encoded))
    assert not raised.value.killed


SCRIPT = """
from airflow_provider_raybatch.job.engine_process import fork_server
from airflow_provider_raybatch.job.engine_process.proxy import EngineProxy
from airflow_provider_raybatch.job.engine.echo import EchoEngine
from tests.support.specs import spec

if __name__ == "__main__":
    fork_server.start = lambda: None
    proxy = EngineProxy()
    proxy.open(spec(engine="echo"), EchoEngine)
    print(proxy._front_end.process.pid, flush=True)
"""


def test_no_process_outlives_one_that_ends_without_closing_it() -> None:
    """Python waits for its children at its end, and this one waits for it."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60, check=True
    )
    assert not psutil.pid_exists(int(done.stdout))
