# SPDX-License-Identifier: Apache-2.0
"""A STAND-IN for Airflow around one task: attempts, deferrals, retries, and what users do to it.

A process that is killed has a successor as in Airflow: a worker the task's next attempt, a triggerer another
one with the same trigger. A user's *mark* and *clear* of a running task are SIGTERM to its process, and
SIGKILL if that takes longer than the seconds that Airflow leaves.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

from . import processes
from .calls import Point, Strike
from .processes import Setting

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["tests.chaos.kubernetes.loaded"])
RETRIES = 4
_SUPERVISOR = 5.0


@dataclass
class Task:
    """One task run.

    :param setting: of its processes.
    :param happens: does a deed of the world; whether there was something to do it to.
    :param late: lets the time pass after which a successor comes late.
    :param limit: seconds for one process.
    :ivar calls: all calls in their order.
    :ivar struck: what happened.
    :ivar state: as Airflow shows it.
    """

    setting: Setting
    happens: Callable[[str], bool]
    late: Callable[[], None]
    limit: float = 120.0
    calls: list[Point] = field(default_factory=list)
    struck: list[tuple[Strike, bool]] = field(default_factory=list)
    killed: int = 0
    tries: int = 1
    errors: list[str] = field(default_factory=list)
    result: Any = None
    state: str = "running"
    _max_tries: int = RETRIES
    _pending: set[str] = field(default_factory=set)

    def run(self) -> None:
        """Run the task to its end."""
        role, event = "task", None
        while self.state == "running":
            self._set("running")
            kind, payload = self._process(processes.work, role, (self.tries, self._max_tries), event)
            role, event = "task", None
            if kind == "deferred":
                kind, payload = self._deferred(*payload)
                if kind == "event":
                    role, event = "resumed", payload
                    continue
            if self._ended_by_user(kind):
                continue
            if kind == "success":
                self.result = payload
                self._end("success")
            elif kind == "failed" or self.tries > self._max_tries:
                self.errors.append(str(payload))
                self._end("failed")
            else:
                self.errors += [str(payload)] if payload else []
                self._set("up_for_retry")
                self.tries += 1

    def _deferred(self, classpath: str, kwargs: str, method: str, given: dict[str, Any]) -> tuple[str, Any]:
        while True:
            self._set("deferred")
            kind, payload = self._process(processes.trigger, "trigger", classpath, kwargs)
            if kind == "event":
                return "event", (method, given, payload)
            if kind == "killed" and not self._pending & {"fail", "orphan", "clear"}:
                continue  # another triggerer
            return kind, payload

    def _ended_by_user(self, kind: str) -> bool:
        """Whether a user's deed decides what follows a process."""
        pending, self._pending = self._pending, set()
        if pending & {"fail", "orphan"}:
            self._end("failed")
            return True
        if "clear" in pending and kind != "success":
            self._max_tries = self.tries + RETRIES
            self.tries += 1
            return True
        return False

    def _set(self, state: str | None) -> None:
        self.setting.state.write_text(state or "")

    def _end(self, state: str) -> None:
        self.state = state
        self._set(state)

    def _process(self, target: Any, role: str, *given: Any) -> tuple[str, Any]:
        ours, theirs = CONTEXT.Pipe()
        process = CONTEXT.Process(target=target, args=(self.setting, role, *given, theirs))
        process.start()
        theirs.close()
        try:
            found = self._listen(ours, role, time.monotonic() + self.limit)
        finally:
            if process.is_alive():
                process.join(1.0)
            if process.is_alive():
                process.kill()
            process.join()
        if found is None:
            self.killed += process.exitcode == -9
            if "late" in self._pending:
                self._pending.discard("late")
                self.late()
            return "killed", None
        return found

    def _listen(self, ours: Connection, role: str, until: float) -> tuple[str, Any] | None:
        terminated = None
        while True:
            now = time.monotonic()
            bound = until if terminated is None else min(until, terminated + _SUPERVISOR)
            if now >= bound:
                if terminated is None:
                    self.errors.append(f"{role}: no end within {self.limit:.0f} s")
                return None
            if not ours.poll(bound - now):
                continue
            try:
                what, payload = ours.recv()
            except (EOFError, ConnectionError):
                return None
            if what == "call":
                self.calls.append(payload)
            elif what == "struck":
                if payload.deed in {"fail", "clear"}:
                    terminated = now
                self._strike(payload, ours)
            else:
                return what, payload

    def _strike(self, strike: Strike, ours: Connection) -> None:
        self.setting.strikes = [one for one in self.setting.strikes if one != strike]
        hit, deed = True, strike.deed
        if deed in {"fail", "clear"}:
            self._pending.add(deed)
            deferred = strike.point.role.endswith("trigger")
            self._set("failed" if deed == "fail" else None if deferred else "restarting")
        elif deed in {"orphan", "late"}:
            self._pending.add(deed)
            if deed == "orphan":
                self._set("failed")
        elif deed not in {"kill", "lost"}:
            hit = self.happens(deed)
        self.struck.append((strike, hit))
        if deed not in {"kill", "lost"}:
            ours.send("go")
