# SPDX-License-Identifier: Apache-2.0
"""Finished rows wait for slower ones no longer than they may, and are given out whatever happens."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from airflow_provider_raybatch.job.engine.base import EngineDeadError
from airflow_provider_raybatch.job.engine.echo import EchoEngine
from airflow_provider_raybatch.job.execution.replica.answers import Answers, Result
from airflow_provider_raybatch.job.monitor.board import ReplicaReport
from airflow_provider_raybatch.job.row import Request, RowFailure
from airflow_provider_raybatch.job.work import Stopwatch
from tests.support.specs import spec


class Scripted(EchoEngine):
    """A prompt says what happens: it waits for its event, or dies."""

    def __init__(self, whole: Any) -> None:
        super().__init__(whole)
        self.events: dict[str, asyncio.Event] = {}

    async def generate(self, encoded: Any) -> Any:
        if encoded.prompt.startswith("wait"):
            await self.events.setdefault(encoded.prompt, asyncio.Event()).wait()
        if encoded.prompt.endswith("die"):
            raise EngineDeadError("gone.")
        return await super().generate(encoded)


class Bench:
    def __init__(self, **fields: Any) -> None:
        whole = spec(**{"engine": "echo", "engine_args": {"max_model_len": 5}, **fields})
        self.engine = Scripted(whole)
        self.report = ReplicaReport("r", "n")
        self.draining = threading.Event()
        self.answers = Answers(self.engine, whole, self.report, self._now, self.draining.is_set)

    @staticmethod
    async def _now(function: Any, *args: Any) -> Any:
        return function(*args)

    async def batches(self, *prompts: str) -> Any:
        requests = {number: Request(prompt=prompt) for number, prompt in enumerate(prompts)}
        async for batch in self.answers.to(requests, Stopwatch()):
            yield batch


def texts(batch: dict[int, Result]) -> dict[int, str]:
    return {
        number: "failed" if isinstance(result, RowFailure) else result.completions[0].text
        for number, result in batch.items()
    }


async def a_while() -> None:
    """Let whatever can go on do so."""
    for _ in range(10):
        await asyncio.sleep(0)


async def test_all_come_together_where_none_is_slow() -> None:
    bench = Bench()
    assert [texts(batch) async for batch in bench.batches("a", "b")] == [{0: "a", 1: "b"}]
    assert bench.report.rows == 2


async def test_a_slow_row_holds_back_the_others_for_flush_interval_only() -> None:
    bench = Bench(flush_interval=0.05)
    came = []
    async for batch in bench.batches("a", "wait", "far too many words here"):
        came.append(texts(batch))
        bench.engine.events["wait"].set()
    assert came == [{0: "a", 2: "failed"}, {1: "wait"}]
    assert bench.report.rows == 3


async def test_tokens_count_when_they_are_there_and_not_when_they_are_written() -> None:
    bench = Bench()
    coming = asyncio.ensure_future(anext(bench.batches("two words", "wait")))
    await a_while()
    assert (bench.report.input_tokens, bench.report.output_tokens) == (2, 2)
    bench.engine.events["wait"].set()
    await coming
    assert (bench.report.input_tokens, bench.report.output_tokens) == (3, 3)


async def test_a_row_that_lands_while_others_are_written_is_given_out_too() -> None:
    bench = Bench(flush_interval=0.05)
    came = []
    async for batch in bench.batches("a", "wait"):
        came.append(texts(batch))
        bench.engine.events["wait"].set()
        await a_while()  # as a part takes to be written
    assert came == [{0: "a"}, {1: "wait"}]


async def test_an_engine_that_dies_while_rows_are_written_gives_out_what_it_had_finished() -> None:
    bench = Bench(flush_interval=0.05)
    came = bench.batches("a", "wait", "wait and die")
    assert texts(await anext(came)) == {0: "a"}
    for prompt in ("wait", "wait and die"):
        bench.engine.events[prompt].set()
        await a_while()
    assert texts(await anext(came)) == {1: "wait"}
    with pytest.raises(EngineDeadError):
        await anext(came)


async def test_whoever_drains_gets_what_is_finished_and_no_more() -> None:
    bench = Bench()
    bench.draining.set()
    assert [texts(batch) async for batch in bench.batches("a", "wait for ever")] == [{0: "a"}]


async def test_an_engine_that_dies_gives_out_what_it_had_finished() -> None:
    bench = Bench()
    came = bench.batches("a", "die", "wait for ever")
    assert texts(await anext(came)) == {0: "a"}
    with pytest.raises(EngineDeadError):
        await anext(came)


async def test_nothing_to_ask_gives_nothing() -> None:
    assert [batch async for batch in Bench().batches()] == []
