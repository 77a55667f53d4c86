# SPDX-License-Identifier: Apache-2.0
"""An engine in a process of its own answers as in this one."""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from airflow_provider_raybatch.contract.failures import PreflightError, RaybatchError
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.job.engine.base import Engine
from airflow_provider_raybatch.job.engine.echo import EchoEngine
from airflow_provider_raybatch.job.engine_process.proxy import EngineProxy
from airflow_provider_raybatch.job.row import Request, RowFailure
from tests.support.engine_proxy import HANGS, answers, asking
from tests.support.pictures import Pixels, asking_about, picture


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


class Occupied(EchoEngine):
    """Works on the images of each request until it has encoded another one."""

    def __init__(self, asked: BatchInferenceSpec) -> None:
        super().__init__(asked)
        self._encoded = threading.Event()

    def encode(self, requests: Sequence[Request]) -> list[Any]:
        if not requests[0].images:
            self._encoded.set()
        return super().encode(requests)

    def attach(self, encoded: Any, pixels: Sequence[Pixels]) -> Any:
        assert self._encoded.wait(30)
        return super().attach(encoded, pixels)


class Selective(EchoEngine):
    """Takes no image that is wider than high."""

    def attach(self, encoded: Any, pixels: Sequence[Pixels]) -> Any:
        if any(one.shape[1] > one.shape[0] for one in pixels):
            return RowFailure("media", "an image is too wide")
        return super().attach(encoded, pixels)


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


def test_pixels_come_to_the_request_they_are_for(proxy: EngineProxy) -> None:
    proxy.open(asking(), Selective)
    high, wide = proxy.encode([asking_about("high"), asking_about("wide")])
    assert proxy.attach(wide, [picture(9, 8)]) == RowFailure("media", "an image is too wide")
    raw = asyncio.run(proxy.generate(proxy.attach(high, [picture(8, 9)])))
    assert proxy.decode([raw])[0].completions[0].text == "[8x9 #ff0000] high"


def test_images_do_not_delay_other_calls(proxy: EngineProxy) -> None:
    """With more requests waiting for their images than there are threads of both kinds."""
    proxy.open(asking(), Occupied)

    async def ask() -> list[Any]:
        encoded = proxy.encode([asking_about(str(number)) for number in range(8)])
        attached = [
            asyncio.ensure_future(asyncio.to_thread(proxy.attach, one, [picture()])) for one in encoded
        ]
        await asyncio.sleep(0.1)
        assert proxy.tokens_in_flight() == 0
        proxy.encode([Request(prompt="text")])
        return list(await asyncio.gather(*attached))

    assert not any(isinstance(one, RowFailure) for one in asyncio.run(asyncio.wait_for(ask(), 60)))


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
