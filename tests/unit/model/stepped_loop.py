# SPDX-License-Identifier: Apache-2.0
"""An event loop that runs what can run, and then waits to be told what happens next."""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any


class SteppedLoop:
    """As much of an event loop as tasks, futures, conditions and `asyncio.sleep` need. It has no clock.

    :ivar timers: what waits for a time to pass.
    """

    def __init__(self) -> None:
        self._ready: deque[tuple[contextvars.Context | None, Callable[..., Any], tuple[Any, ...]]] = deque()
        self.timers: list[tuple[Callable[..., Any], tuple[Any, ...]]] = []
        self.tasks: list[asyncio.Task[Any]] = []

    def run(self) -> None:
        """Run until all tasks wait for something."""
        asyncio._set_running_loop(self)  # type: ignore[arg-type]
        try:
            while self._ready:
                context, callback, arguments = self._ready.popleft()
                if context is None:
                    callback(*arguments)
                else:
                    context.run(callback, *arguments)
        finally:
            asyncio._set_running_loop(None)

    def start(self, coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.Task(coroutine, loop=self)  # type: ignore[arg-type]
        self.tasks.append(task)
        return task

    def fire(self) -> None:
        """The time of the first timer has come."""
        callback, arguments = self.timers.pop(0)
        self.call_soon(callback, *arguments)

    def end(self) -> None:
        """The process ends: no task runs another step."""
        for task in self.tasks:
            task.cancel()
        self.run()

    def call_soon(self, callback: Callable[..., Any], *arguments: Any, context: Any = None) -> None:
        self._ready.append((context, callback, arguments))

    def call_later(
        self, delay: float, callback: Callable[..., Any], *arguments: Any, context: Any = None
    ) -> Any:
        self.timers.append((callback, arguments))
        return _Handle

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)  # type: ignore[arg-type]

    def get_debug(self) -> bool:
        return False

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        pass


class _Handle:
    @staticmethod
    def cancel() -> None:
        pass
