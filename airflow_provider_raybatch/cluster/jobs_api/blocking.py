# SPDX-License-Identifier: Apache-2.0
"""Run the async code from blocking code, on an event loop of its own; bound a blocking call."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

Result = TypeVar("Result")

_CANCEL_GRACE = 10.0


def run_blocking(coroutine: Coroutine[Any, Any, Result]) -> Result:
    """Run `coroutine` to its end in a fresh thread with a loop of its own; return or raise what it does.

    Works beside a running loop, and inside a signal handler that interrupted one. Context variables are
    visible. When the waiting thread is interrupted (a signal handler raises), the coroutine is cancelled
    before the exception goes on.
    """
    loop = asyncio.new_event_loop()
    task = loop.create_task(coroutine)
    done = threading.Event()

    def run() -> None:
        # The waiting thread raises the task's error, even a BaseException.
        with suppress(BaseException), asyncio.Runner(loop_factory=lambda: loop):
            loop.run_until_complete(task)
        done.set()

    try:
        threading.Thread(target=run, name="raybatch-blocking", daemon=True).start()
        # Not thread.join(): once interrupted, it treats the thread as ended (Python < 3.13).
        done.wait()
    except BaseException:
        with suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(task.cancel)
        done.wait(_CANCEL_GRACE)
        raise
    return task.result()


def call_within(seconds: float, call: Callable[[], Result]) -> Result:
    """Return or raise what `call` does, which runs in a thread of its own.

    :raises TimeoutError: it took longer than `seconds`; the thread goes on.
    """
    answer: Future[Result] = Future()

    def run() -> None:
        try:
            answer.set_result(call())
        except BaseException as error:
            answer.set_exception(error)

    threading.Thread(target=run, name="raybatch-bounded", daemon=True).start()
    return answer.result(seconds)
