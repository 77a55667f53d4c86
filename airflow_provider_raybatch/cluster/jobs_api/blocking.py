# SPDX-License-Identifier: Apache-2.0
"""Run the async code from blocking code, on an event loop of its own."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")

_CANCEL_GRACE = 10.0


def run_blocking(coroutine: Coroutine[Any, Any, Result]) -> Result:
    """Run `coroutine` to its end in a fresh thread with a loop of its own; return or raise what it does.

    Works wherever a thread can wait: beside a running loop, and inside a signal handler that interrupted one.
    Clients must be made inside the coroutine. Context variables are visible to it. When the waiting thread is
    interrupted (a signal handler raises), the coroutine is cancelled before the exception goes on.
    """
    runner = _Runner(coroutine)
    context = contextvars.copy_context()
    thread = threading.Thread(target=context.run, args=(runner.run,), name="raybatch-blocking", daemon=True)
    thread.start()
    try:
        # Not thread.join(): once interrupted, it treats the thread as ended (Python < 3.13).
        runner.done.wait()
    except BaseException:
        runner.cancel()
        runner.done.wait(_CANCEL_GRACE)
        raise
    result: Result = runner.result()
    return result


class _Runner:
    def __init__(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        self.done = threading.Event()
        self._coroutine = coroutine
        self._lock = threading.Lock()
        self._cancelled = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[Any] | None = None
        self._value: Any = None
        self._error: BaseException | None = None

    def run(self) -> None:
        try:
            self._value = asyncio.run(self._main())
        except BaseException as error:
            # The waiting thread raises it, even a BaseException.
            self._error = error
        finally:
            self.done.set()

    async def _main(self) -> Any:
        with self._lock:
            self._loop = asyncio.get_running_loop()
            self._task = asyncio.ensure_future(self._coroutine)
            if self._cancelled:
                self._task.cancel()
        try:
            return await self._task
        finally:
            with self._lock:
                self._loop = None

    def cancel(self) -> None:
        with self._lock:
            self._cancelled = True
            if self._loop is not None and self._task is not None:
                self._loop.call_soon_threadsafe(self._task.cancel)

    def result(self) -> Any:
        if self._error is not None:
            raise self._error
        return self._value
