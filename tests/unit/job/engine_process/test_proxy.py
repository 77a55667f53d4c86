# SPDX-License-Identifier: Apache-2.0
"""An engine in a process of its own answers as in this one, and its end is told."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import Any

import psutil
import pytest

from airflow_provider_raybatch.contract.failures import PreflightError, RaybatchError
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.job.engine.base import Engine, EngineDeadError, EngineInfo
from airflow_provider_raybatch.job.engine.echo import EchoEngine
from airflow_provider_raybatch.job.engine_process import fork_server
from airflow_provider_raybatch.job.engine_process.front_end import OwnFrontEnd
from airflow_provider_raybatch.job.engine_process.proxy import EngineProxy
from airflow_provider_raybatch.job.engine_process.server import RESTS
from airflow_provider_raybatch.job.row import Request, RowFailure
from tests.support.interleaved import Interruption
from tests.support.specs import spec

PROMPTS = ["one two", "of this length are too long for it", "bad", "three"]
HANGS = {"hang_pattern": "forever", "seconds_per_token": 0.001}


class Counted(EchoEngine):
    """Tells, as tokens in flight, how many encoded requests and results it still holds."""

    def __init__(self, asked: BatchInferenceSpec) -> None:
        super().__init__(asked)
        self._held: list[weakref.ref[Any]] = []

    def encode(self, requests: Sequence[Request]) -> list[Any]:
        encoded = super().encode(requests)
        self._held += map(weakref.ref, encoded)
        return encoded

    async def generate(self, encoded: Any) -> Any:
        made = await super().generate(encoded)
        self._held.append(weakref.ref(made))
        return made

    def tokens_in_flight(self) -> int:
        return sum(one() is not None for one in self._held)


class ForeignError(Exception):
    """Of a library that the other process alone has."""


def refuses(asked: BatchInferenceSpec) -> Engine:
    raise PreflightError(f"engine_args: {asked.model!r} can't be opened.")


def breaks(asked: BatchInferenceSpec) -> Engine:
    raise ForeignError("out of memory")


class Unprepared(EchoEngine):
    """Can't load what its job needs: at its start, or for the next job."""

    closed = 0

    async def prepare(self) -> None:
        if self._options.fail_pattern == "unprepared":
            raise PreflightError("adapters: 'acme' can't be loaded.")

    def close(self) -> None:
        type(self).closed += 1


def closed() -> int:
    return Unprepared.closed


def fails() -> None:
    raise ValueError("no")


@pytest.fixture
def proxy(monkeypatch: pytest.MonkeyPatch) -> Iterator[EngineProxy]:
    monkeypatch.setattr(fork_server, "start", lambda: None)  # vLLM's import is not needed
    made = EngineProxy()
    yield made
    made.close()
    assert not made._front_end.process.is_alive()


def asking(**options: Any) -> BatchInferenceSpec:
    return spec(engine="echo", engine_args=options)


def answers(engine: Engine, prompts: Sequence[str] = PROMPTS) -> list[Any]:
    """What becomes of prompts, with the tokens of each."""

    async def generated(encoded: Any) -> Any:
        return encoded if isinstance(encoded, RowFailure) else await engine.generate(encoded)

    async def ask() -> list[Any]:
        encoded = engine.encode([Request(prompt=prompt) for prompt in prompts])
        return list(await asyncio.gather(*map(generated, encoded)))

    raw = asyncio.run(ask())
    found = [one for one in raw if not isinstance(one, RowFailure)]
    decoded = [(one, engine.tokens(made)) for one, made in zip(engine.decode(found), found, strict=True)]
    return [one if isinstance(one, RowFailure) else decoded.pop(0) for one in raw]


def test_answers_are_those_of_this_process(proxy: EngineProxy) -> None:
    asked = asking(max_model_len=6, fail_pattern="bad")
    proxy.open(asked, EchoEngine)
    here = EchoEngine(asked)
    assert proxy.info == here.info
    assert answers(proxy) == answers(here)
    assert [type(one) for one in answers(here)] == [tuple, RowFailure, RowFailure, tuple]


def test_many_requests_pass_at_once(proxy: EngineProxy) -> None:
    """More in both directions than a connection holds, as with thousands of rows a second."""
    proxy.open(asking(seconds_per_token=0.0001), EchoEngine)
    prompts = ["word " * 100 + str(number) for number in range(1000)]

    async def ask() -> list[Any]:
        batches = await asyncio.gather(*[
            asyncio.to_thread(proxy.encode, [Request(prompt=one) for one in prompts]) for _ in range(4)
        ])
        raw = await asyncio.gather(*(proxy.generate(one) for batch in batches for one in batch))
        return await asyncio.to_thread(proxy.decode, raw)

    made = asyncio.run(asyncio.wait_for(ask(), 60))
    assert [one.completions[0].text for one in made] == prompts * 4


def test_what_is_not_needed_any_more_is_forgotten(proxy: EngineProxy) -> None:
    proxy.open(asking(), Counted)
    encoded = proxy.encode([Request(prompt="a"), Request(prompt="b")])
    assert proxy.tokens_in_flight() == 2
    del encoded
    assert len(answers(proxy, ["c", "d", "e"])) == 3
    answers(proxy, ["f"])  # what is forgotten is told with the next request
    assert proxy.tokens_in_flight() <= 2


def test_a_function_is_called_there_before_the_engine_opens(proxy: EngineProxy) -> None:
    assert proxy.call(os.getpid) == proxy._front_end.process.pid
    with pytest.raises(ValueError, match=r"^no$"):
        proxy.call(fails)
    proxy.open(asking(), EchoEngine)


@pytest.mark.parametrize(
    ("opens", "error", "sentence"),
    [
        (refuses, PreflightError, "engine_args: 'echo' can't be opened."),
        (breaks, RaybatchError, "ForeignError: out of memory"),
    ],
)
def test_why_it_does_not_open_is_told(
    proxy: EngineProxy, opens: Callable[..., Engine], error: type[RaybatchError], sentence: str
) -> None:
    with pytest.raises(error) as raised:
        proxy.open(asking(), opens)
    assert str(raised.value) == sentence


def test_an_engine_that_can_t_be_prepared_is_closed(proxy: EngineProxy) -> None:
    """And its process opens another one."""
    with pytest.raises(PreflightError, match="adapters: 'acme' can't be loaded"):
        proxy.open(asking(fail_pattern="unprepared"), Unprepared)
    assert proxy.call(closed) == 1
    proxy.open(asking(), Unprepared)
    assert answers(proxy, ["a"]) == answers(EchoEngine(asking()), ["a"])


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


def test_a_request_that_is_cancelled_ends_there(proxy: EngineProxy) -> None:
    proxy.open(asking(max_num_seqs=1, **HANGS), EchoEngine)
    stuck, short = proxy.encode([Request(prompt="forever"), Request(prompt="short")])

    async def ask() -> Any:
        first = asyncio.ensure_future(proxy.generate(stuck))
        second = asyncio.ensure_future(proxy.generate(short))
        await asyncio.sleep(0.1)
        assert not second.done()  # there is one slot
        first.cancel()
        return await second

    assert proxy.tokens(asyncio.run(asyncio.wait_for(ask(), 30))) == (1, 1)


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
