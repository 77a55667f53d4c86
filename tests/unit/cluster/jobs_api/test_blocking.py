# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import asyncio
import contextvars
import os
import signal
import threading

import pytest

from airflow_provider_raybatch.cluster.jobs_api.blocking import run_blocking

WHERE = contextvars.ContextVar("WHERE", default="nowhere")


async def answer(value):
    await asyncio.sleep(0.01)
    return value


async def fail():
    raise LookupError("lost")


def test_result_and_error_come_through():
    assert run_blocking(answer(5)) == 5
    with pytest.raises(LookupError, match="lost"):
        run_blocking(fail())


async def test_works_beside_a_running_loop_with_its_context_variables():
    async def read():
        return WHERE.get()

    WHERE.set("here")
    assert run_blocking(read()) == "here"


def test_works_in_a_signal_handler_over_a_running_loop():
    seen = []
    before = signal.signal(signal.SIGUSR1, lambda number, frame: seen.append(run_blocking(answer("handled"))))
    try:

        async def main():
            signal.raise_signal(signal.SIGUSR1)
            await asyncio.sleep(0.05)
            return "main loop goes on"

        assert asyncio.run(main()) == "main loop goes on"
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert seen == ["handled"]


def test_an_interruption_cancels_the_coroutine():
    cancelled = threading.Event()

    async def forever():
        os.kill(os.getpid(), signal.SIGALRM)
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    def interrupt(number, frame):
        raise TimeoutError("interrupted")

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with pytest.raises(TimeoutError, match="interrupted"):
            run_blocking(forever())
    finally:
        signal.signal(signal.SIGALRM, before)
    assert cancelled.is_set()
