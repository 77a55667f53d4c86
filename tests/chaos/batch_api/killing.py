# SPDX-License-Identifier: Apache-2.0
"""Plays the kills of a round, one after the other, and notes what each has taken."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeVar

import httpx
import psutil

from airflow_provider_raybatch.contract import layout

from ..cluster import kill as kill_at_once
from .asked import Loss
from .plan import TRIGGERER, Kill
from .world import SERVERS, BatchApiWorld

Found = TypeVar("Found")

_PATIENCE = 120.0
"""Seconds to wait for a victim."""
_POLL = 0.1


@dataclass(frozen=True)
class Hit:
    """A kill that has happened.

    :param at: seconds since the round began.
    :param taken: what died.
    """

    kind: str
    moment: str
    at: float
    taken: str


@dataclass
class Killer:
    """Plays kills in the calling thread; what they took down is started again by others.

    :ivar missed: kills without a victim.
    """

    world: BatchApiWorld
    began: float = field(default_factory=time.time)
    hits: list[Hit] = field(default_factory=list)
    losses: list[Loss] = field(default_factory=list)
    missed: list[Kill] = field(default_factory=list)
    _away: set[str] = field(default_factory=set)
    _restarts: list[threading.Thread] = field(default_factory=list)

    def play(self, kills: list[Kill]) -> None:
        """Kill in this order, and return when all that was killed is started again."""
        for kill in kills:
            time.sleep(kill.after)
            taken = self._play(kill)
            if taken is None:
                self.missed.append(kill)
            else:
                hit = Hit(kill.kind, kill.moment, round(time.time() - self.began, 1), taken)
                self.hits.append(hit)
                print(f"  {hit.at:6.1f} s: {hit.kind} {hit.moment}: {hit.taken}", flush=True)
        for thread in self._restarts:
            thread.join()

    def _play(self, kill: Kill) -> str | None:
        if kill.kind == "server":
            return self._server(kill)
        if kill.kind in {"scheduler", TRIGGERER}:
            return self._component(kill)
        return {"worker": self._worker, "driver": self._driver, "engine": self._engine}[kill.kind](kill)

    def _server(self, kill: Kill) -> str | None:
        self._await_all(*SERVERS)
        if kill.moment == "recorded":
            if not self._recorded():
                return None
        elif not self.world.moments.wait_for_next(kill.moment, _PATIENCE):
            return None
        time.sleep(kill.delay)
        one = SERVERS[int(kill.choice * len(SERVERS))]
        taken = SERVERS if kill.with_family else (one,)
        for server in taken:
            self.world.airflow.kill(server, with_family=True)
        for server in taken:
            self._restart_later(server, kill.away)
        return "+".join(taken)

    def _component(self, kill: Kill) -> str:
        self._await_all(kill.kind)
        self.world.airflow.kill(kill.kind, with_family=kill.with_family)
        self._restart_later(kill.kind, kill.away)
        return f"{kill.kind} with its family" if kill.with_family else kill.kind

    def _worker(self, kill: Kill) -> str | None:
        self._await_all("scheduler")  # its workers are found by it
        process = _waited(lambda: _one(self._workers(), kill))
        if process is None:
            return None
        with suppress(psutil.NoSuchProcess):
            supervisor = process.parent()
            if kill.with_family and supervisor is not None:
                kill_at_once([supervisor, process])
                return "the task with its supervisor"
        kill_at_once([process])
        return "the task"

    def _workers(self) -> list[psutil.Process]:
        with suppress(httpx.HTTPError, AssertionError, ValueError):  # no server is alive
            return self.world.workers()
        return []

    def _driver(self, kill: Kill) -> str | None:
        process = _waited(lambda: _one(self.world.drivers(), kill))
        if process is None:
            return None
        try:
            settings = process.environ().get("RAY_JOB_CONFIG_JSON_ENV_VAR", "")
        except psutil.NoSuchProcess:
            return None
        last = {engine.pid: engine for engine in self.world.engines()}
        pids = [pid for pid, engine in last.items() if engine.submission and engine.submission in settings]
        now = time.time()
        kill_at_once([process])
        self.losses += [Loss(pid, now) for pid in pids]
        return f"a driver with {sum(map(psutil.pid_exists, pids))} engines"

    def _engine(self, kill: Kill) -> str | None:
        pid = _waited(lambda: _one(self._busy_engines(), kill))
        if pid is None:
            return None
        now = time.time()
        with suppress(psutil.NoSuchProcess):
            kill_at_once([psutil.Process(pid)])
            self.losses.append(Loss(pid, now))
            return "an engine with requests in flight"
        return None

    def _busy_engines(self) -> list[int]:
        last = {engine.pid: engine for engine in self.world.engines()}
        return [
            pid
            for pid, engine in last.items()
            if len(engine.asked) > len(engine.generated) and psutil.pid_exists(pid)
        ]

    def _recorded(self) -> bool:
        """Wait for a batch that has its record and no DAG run."""
        place = self.world.root / layout.BATCHES
        place.mkdir(exist_ok=True)
        known = set(place.iterdir())
        deadline = time.monotonic() + _PATIENCE
        while time.monotonic() < deadline:
            for batch in set(place.iterdir()) - known:
                if (batch / layout.SIGNED_RECORD).exists():
                    if not (batch / layout.TRIGGERED).exists():
                        return True
                    known.add(batch)
            time.sleep(0.004)
        return False

    def _await_all(self, *components: str) -> None:
        """Wait until these are there, so that a kill has a victim."""
        _waited(lambda: not self._away.intersection(components) or None)
        if SERVERS[0] in components:
            self.world.wait_until_whole()

    def _restart_later(self, component: str, away: float) -> None:
        self._away.add(component)

        def restart() -> None:
            time.sleep(away)
            self.world.start(component)
            self._away.discard(component)

        thread = threading.Thread(target=restart, name=f"restart {component}")
        thread.start()
        self._restarts.append(thread)


def _one(found: list[Found], kill: Kill) -> Found | None:
    return random.Random(kill.choice).choice(found) if found else None


def _waited(find: Callable[[], Found | None]) -> Found | None:
    deadline = time.monotonic() + _PATIENCE
    while (found := find()) is None and time.monotonic() < deadline:
        time.sleep(_POLL)
    return found
