# SPDX-License-Identifier: Apache-2.0
"""Time that passes only while code waits, and event loops on that time, which may be nested."""

from __future__ import annotations

import asyncio
import contextlib
import selectors
import signal
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pytest

Result = TypeVar("Result")


@dataclass
class Clock:
    """Stands for the module ``time``. All clocks of the model show the same time."""

    now: float = 1_700_000_000.0

    def time(self) -> float:
        return self.now

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class _Jumping(selectors.SelectSelector):
    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.clock = clock

    def select(self, timeout: float | None = None) -> list[Any]:
        assert timeout is not None, "a coroutine waits for an event that never comes"
        self.clock.now += timeout
        return []


class _Loop(asyncio.SelectorEventLoop):
    def __init__(self, clock: Clock) -> None:
        super().__init__(_Jumping(clock))
        self._clock_resolution = 1e-3
        self.clock = clock
        self.begun: list[asyncio.Task[Any]] = []
        """Of one run: `asyncio.all_tasks` walks the tasks of all loops of the process."""

    def create_task(self, coro: Any, **named: Any) -> asyncio.Task[Any]:
        self.begun.append(super().create_task(coro, **named))
        return self.begun[-1]

    def time(self) -> float:
        return self.clock.now

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> Any:
        done = self.create_future()
        done.set_result(func(*args))
        return done


@dataclass
class Loops:
    """Runs coroutines to their end; a coroutine may run inside a call of another one."""

    clock: Clock
    idle: list[_Loop] = field(default_factory=list)

    def run(self, coroutine: Coroutine[Any, Any, Result]) -> Result:
        """Do what `run_blocking` does, without a thread."""
        outer = asyncio._get_running_loop()
        asyncio._set_running_loop(None)
        loop = self.idle.pop() if self.idle else _Loop(self.clock)
        try:
            return loop.run_until_complete(coroutine)
        finally:
            left = [task for task in loop.begun if not task.done()]
            loop.begun.clear()
            for task in left:
                task.cancel()
            with contextlib.suppress(BaseException):
                loop.run_until_complete(asyncio.gather(*left, return_exceptions=True)) if left else None
            self.idle.append(loop)
            asyncio._set_running_loop(outer)

    def close(self) -> None:
        for loop in self.idle:
            loop.close()


@contextlib.contextmanager
def cpu_limit(seconds: float) -> Iterator[None]:
    """Fail the test once this process has computed for `seconds`, however long other work delays it."""

    def fail(*_: object) -> None:
        pytest.fail(f"it has computed for {seconds} s")

    before = signal.signal(signal.SIGPROF, fail)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
