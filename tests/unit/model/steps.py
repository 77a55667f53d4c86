# SPDX-License-Identifier: Apache-2.0
"""The outside calls of one task, as steps; any event may come right before a step."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import httpx

from airflow_provider_raybatch.operators.run_record import KEY, RunRecord
from tests.support.airflow_tasks import Store

from .clock import Clock, Loops
from .jobs_api import Ray
from .operators import OPERATORS
from .process import Gone, Process, Wrong

RETRIES = 5
MOST_STEPS = 3000

Hook = Callable[[str], str | None]


class _Store(Store):
    """Airflow gives a task a new id with each try and forgets the old one: its reads find nothing.

    Where a user marks a task, its process ends before the next try gets its id. A clear gives it at once.
    """

    def __init__(self, world: Steps) -> None:
        super().__init__()
        self.world = world

    def get(self, key: str, default: Any = None) -> Any:
        if self.world.step("store get") is not None:
            raise ConnectionError("the API server is away")
        has_id = self.world.is_heard or self.world.process is self.world.told_to_end
        has_id = has_id and not self.world.restarting
        return super().get(key, default) if has_id else default

    def set(self, key: str, value: Any, *, retention: Any = None) -> None:
        answer = self.world.step("store set")
        if not self.world.is_heard:
            raise LookupError("task instance not found")
        if answer != "refused":
            super().set(key, value, retention=retention)
        if answer is not None:
            raise ConnectionError("the API server is away")


class Steps:
    """A task with its log and its calls, and the cluster that it calls.

    :param forgetful: whether a clear drops the task's state, as Airflow 3.4 does.
    :ivar current: the process that works on the task, as Airflow sees it.
    :ivar process: the one that runs now.
    :ivar told_to_end: the one whose task a user ends.
    :ivar silent: whether Airflow answers no process.
    :ivar restarting: whether a running task is cleared, and not yet ended.
    :ivar is_alone: whether one event alone happens.
    """

    def __init__(self, deferrable: bool, *, forgetful: bool = False, **cluster: Any) -> None:
        self.clock = Clock()
        self.loops = Loops(self.clock)
        self.ray = Ray(self.clock, **cluster)
        self.store = _Store(self)
        self.forgetful = forgetful
        self.operator = copy.copy(OPERATORS[deferrable])
        self.state = "queued"
        self.try_number, self.max_tries = 1, RETRIES
        self.resume: tuple[str, dict[str, Any]] | None = None
        self.trigger: dict[str, Any] = {}
        self.current: Process | None = None
        self.process: Process | None = None
        self.told_to_end: Process | None = None
        self.before: Hook = lambda call: None
        self.steps = 0
        self.requests = 0
        self.result: Any = None
        self.old_tokens: set[str] = set()
        self.stopped_by_user: set[str] = set()
        self.judged = 0
        self.stops = 0
        self.store_was_away = False
        self.may_fail = False
        self.was_informed = self.silent = self.in_doubt = False
        self.is_alone = self.restarting = False
        self.evicted: Process | None = None
        self.straggling: set[str] = set()
        self.may_freeze = False
        self.zombie: Process | None = None
        self.call = self.frozen_at = ""
        self.log_lines: list[str] = []
        self.operator.log = self  # type: ignore[assignment]

    # The log of the task.

    def info(self, text: str, *values: object) -> None:
        self.log_lines.append(text % values)

    warning = error = info

    # Steps.

    def step(self, call: str) -> str | None:
        """Make an outside call of the present process."""
        process = self.process
        assert process is not None
        self._alive(process)
        self.clock.now += 0.02
        self.steps += 1
        if self.steps > MOST_STEPS:
            raise Wrong(f"no end: {call}")
        self.ray.advance()
        self.log_lines.append(f"{self.steps} {self.clock.now - 1.7e9:.2f} {call}")
        self.call = call
        answer = self.before(call)
        self.store_was_away |= answer is not None and call.startswith("store")
        if answer == "freeze":
            process.paused.set()
            process.goes_on.wait()
            answer = None
        self.process = process
        self._alive(process)
        self.check()
        return answer

    def check(self) -> None:
        """Check what must hold at every instant."""
        raise NotImplementedError

    def _alive(self, process: Process) -> None:
        if process.gone or self.clock.now >= process.dies_at:
            process.gone = True
            raise Gone

    def within(self, seconds: float, call: Callable[[], Any]) -> Any:
        """Do what `call_within` does, without a thread."""
        if self.silent:
            self.clock.now += seconds
            raise TimeoutError
        return call()

    async def request(self, method: str, path: str, params: Any, body: Any) -> httpx.Response | None:
        answer = self.step(f"{method} {path}")
        self.requests += 1
        if answer == "refused":
            return None
        code, text = self.ray.answer(method, path, params or {}, body, late=answer == "late")
        self.check()
        return None if answer == "lost" else httpx.Response(code, text=text)

    # Airflow's part.

    @property
    def is_heard(self) -> bool:
        """Return whether Airflow takes the present process for the one that works on the task."""
        return self.process is self.current

    @property
    def record(self) -> RunRecord | None:
        data = self.store.values.get(KEY)
        return None if data is None else RunRecord.model_validate(data)
