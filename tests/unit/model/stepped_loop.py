# SPDX-License-Identifier: Apache-2.0
"""An event loop that runs all ready tasks, and then waits for a call that lets time pass."""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

AT_ONCE = 1e-9
"""Seconds: what sleeps no longer goes on without being told."""


class _Timer:
    def __init__(self, when: float, callback: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        self.when = when
        self.callback = callback
        self.arguments = arguments
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


class SteppedLoop:
    """The part of an event loop that the replica needs. Each has its own clock.

    :ivar now: seconds.
    """

    def __init__(self) -> None:
        self._ready: deque[tuple[contextvars.Context | None, Callable[..., Any], tuple[Any, ...]]] = deque()
        self._timers: list[_Timer] = []
        self._tasks: list[asyncio.Task[Any]] = []
        self.now = 0.0

    def run(self) -> None:
        """Run until all tasks wait for time to pass."""
        asyncio._set_running_loop(self)  # type: ignore[arg-type]
        try:
            while self._ready or self._fires(self.now + AT_ONCE):
                context, callback, arguments = self._ready.popleft()
                if context is None:
                    callback(*arguments)
                else:
                    context.run(callback, *arguments)
        finally:
            asyncio._set_running_loop(None)

    def wait(self, seconds: float) -> None:
        """Let time pass at once; timers do not fire one after the other."""
        self.now += seconds
        self.run()

    def start(self, coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Begin a task; it runs with the next call of :meth:`run`."""
        return self.create_task(coroutine)

    def end(self) -> None:
        """End the process: tasks run only to clean up."""
        for task in self._tasks:
            task.cancel()
        self.run()

    def _fires(self, until: float) -> bool:
        self._timers = [timer for timer in self._timers if not timer.is_cancelled]
        due = min(self._timers, key=lambda timer: timer.when, default=None)
        if due is None or due.when > until:
            return False
        self._timers.remove(due)
        self.now = max(self.now, due.when)
        self.call_soon(due.callback, *due.arguments)
        return True

    # Methods that asyncio calls.

    def time(self) -> float:
        return self.now

    def create_task(self, coroutine: Coroutine[Any, Any, Any], **options: Any) -> asyncio.Task[Any]:
        task = asyncio.Task(coroutine, loop=self)  # type: ignore[arg-type]
        self._tasks = [one for one in self._tasks if not one.done()] + [task]
        return task

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)  # type: ignore[arg-type]

    def call_soon(self, callback: Callable[..., Any], *arguments: Any, context: Any = None) -> None:
        self._ready.append((context, callback, arguments))

    def call_at(self, when: float, callback: Callable[..., Any], *arguments: Any, context: Any = None) -> Any:
        self._timers.append(_Timer(when, callback, arguments))
        return self._timers[-1]

    def call_later(
        self, delay: float, callback: Callable[..., Any], *arguments: Any, context: Any = None
    ) -> Any:
        return self.call_at(self.now + delay, callback, *arguments)

    def get_debug(self) -> bool:
        return False

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        pass
