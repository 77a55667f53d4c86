# SPDX-License-Identifier: Apache-2.0
"""Finds an engine for each replica of a job that waits for one: an idle one, or else a new one.

It is a part of the job's coordinator, so a thousand replicas do not each ask a thousand engines. An actor
that it makes is detached, so the pool ends it when it is no longer needed.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from airflow_provider_raybatch.contract.failures import FailureClass, RaybatchError
from airflow_provider_raybatch.job.warm_engines.actor import WarmEngineActor
from airflow_provider_raybatch.job.warm_engines.front_end import to_open
from airflow_provider_raybatch.job.warm_engines.lease import Holder
from airflow_provider_raybatch.job.warm_engines.registry import (
    NAMESPACE,
    EngineKey,
    WarmEngineRegistry,
    name_of,
)
from airflow_provider_raybatch.job.warm_engines.source import EnginePool, gpu_options
from airflow_provider_raybatch.job.work import CheckedModel

_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 2.0
"""Seconds between two searches: less than an idle engine waits before it ends for others."""
_TAKE_SECONDS = 10.0
_COMING_SECONDS = 10.0
"""For which a replica is expected to come that an engine is there for."""
_MOST_FAILURES = 3
"""Actors in a row that ended before they had started."""


class WarmEnginePool(EnginePool):
    """Of one job.

    :param key: the engine that its replicas want.
    :param maker: see :func:`maker_name`.
    """

    def __init__(self, key: EngineKey, maker: str, most: int) -> None:
        self._key = key
        self._maker = maker
        self.most = most
        self._numbers = itertools.count()
        self._registry = WarmEngineRegistry(key.digest)
        self._waiting: dict[Holder, str] = {}
        """The node of each replica that waits."""
        self._given: dict[str, tuple[Holder, Any]] = {}
        """The engine of each process."""
        self._informed: set[str] = set()
        """Processes that know of their engine."""
        self._joining: dict[str, float] = {}
        """When a process got an idle engine, until it has opened it."""
        self._came: set[str] = set()
        """Processes that have asked for an engine."""
        self._idle, self._searched = 0, 0.0
        """How many engines could be taken at the latest search, and its time."""
        self._made: dict[str, Any] = {}
        """Actors that have not started, by name."""
        self._failures = 0
        self._changed = threading.Condition()
        self._has_ended = False
        self._thread = threading.Thread(target=self._run, name="raybatch-pool", daemon=True)
        self._thread.start()

    def has_engine(self, process: str) -> bool:
        """See :class:`EnginePool`."""
        with self._changed:
            return process in self._informed

    def engine_for(self, holder: Holder, node: str) -> Any:
        """See :class:`EnginePool`."""
        with self._changed:
            self._came.add(holder.process)
            if holder.process in self._given:
                self._informed.add(holder.process)
                return self._given[holder.process][1]
            if self._failures >= _MOST_FAILURES:
                raise RaybatchError(
                    f"keep_warm: {self._failures} actors of warm engines ended at their start; "
                    "their logs on the cluster say why.",
                    FailureClass.ENGINE_DEAD,
                )
            if holder not in self._waiting:
                self._waiting[holder] = node
                self._changed.notify_all()
        return None

    def gone(self, process: str) -> None:
        """See :class:`EnginePool`. An engine that was not given back may be broken."""
        with self._changed:
            self._waiting = {
                holder: node for holder, node in self._waiting.items() if holder.process != process
            }
            holder, actor = self._given.pop(process, (None, None))
            is_informed = process in self._informed
            self._informed.discard(process)
            self._joining.pop(process, None)
            self._changed.notify_all()
        if actor is not None:
            (actor.abandon if is_informed else actor.decline).remote(holder)

    @property
    def coming(self) -> int:
        """See :class:`EnginePool`. A replica that joins a second earlier must not take all rows."""
        with self._changed:
            since = time.monotonic() - _COMING_SECONDS
            joining = sum(at > since for at in self._joining.values())
            others = len(self._waiting) + max(0, self.most - len(self._came))
            return joining + (min(self._idle, others) if self._searched > since else 0)

    def joined(self, process: str) -> None:
        """See :class:`EnginePool`."""
        with self._changed:
            self._joining.pop(process, None)

    @property
    def has_given(self) -> bool:
        """See :class:`EnginePool`."""
        with self._changed:
            return bool(self._given)

    def close(self, model: CheckedModel | None = None) -> None:
        """See :class:`EnginePool`."""
        with self._changed:
            self._has_ended = True
            self._changed.notify_all()
        self._thread.join()
        for actor in self._made.values():
            ray.kill(actor)
        if model is not None and self._key.seconds:
            order = to_open(model)
            given = [self._given.pop(process) for process in self._given.keys() & self._informed]
            heard = [actor.open_alone.remote(holder, self._key.seconds, *order) for holder, actor in given]
            if heard:  # this actor ends then, and what it has not sent is lost
                ray.wait(heard, num_returns=len(heard), timeout=_TAKE_SECONDS)

    def _run(self) -> None:
        pause = _FIRST_PAUSE
        while True:
            with self._changed:
                if not (self._waiting or self._made):
                    pause = _FIRST_PAUSE
                self._changed.wait_for(lambda: self._has_ended or self._waiting or self._made)
                if self._has_ended:
                    return
            with contextlib.suppress(Exception):  # the cluster is busy, say, and will be asked again
                self._search()
            with self._changed:
                self._changed.wait_for(lambda: self._has_ended, pause)
            pause = min(_LONGEST_PAUSE, 1.5 * pause)

    def _search(self) -> None:
        states = self._registry.states()
        with self._changed:
            self._idle = sum(
                state is not None and state.is_free_for(self._maker) for state in states.values()
            )
            self._searched = time.monotonic()
        for name, state in states.items():
            if state is not None:
                idled = self._made.pop(name, None) is None
                with self._changed:
                    holder = next(iter(self._waiting), None)
                if state.is_free_for(self._maker) and holder is not None:
                    self._give(self._registry.actor(name), holder, idled)
        with self._changed:
            waiting = list(self._waiting.items())
            self._failures += len(self._made.keys() - states.keys())
        for name in self._made.keys() - states.keys():
            del self._made[name]
        for name in list(self._made)[len(waiting) :]:
            ray.kill(self._made.pop(name))
        for holder, node in waiting[len(self._made) :]:
            self._make(holder, node)

    def _give(self, actor: Any, holder: Holder, idled: bool) -> None:
        try:
            has_taken = ray.get(actor.take.remote(holder, self._maker), timeout=_TAKE_SECONDS)
        except ray.exceptions.RayError:  # it has ended meanwhile
            return
        if not has_taken:
            return
        with self._changed:
            self._failures = 0
            self._idle -= 1
            if self._waiting.pop(holder, None) is not None:
                self._given[holder.process] = holder, actor
                if idled:
                    self._joining[holder.process] = time.monotonic()
                return
        actor.decline.remote(holder)  # it has left meanwhile

    def _make(self, holder: Holder, node: str) -> None:
        options = {"num_cpus": 0, **gpu_options(self._key.gpus, self._key.accelerator_type)}
        if not self._key.gpus:
            # It asks for nothing that Ray counts, so it belongs where the replica's CPUs are.
            options["scheduling_strategy"] = NodeAffinitySchedulingStrategy(node, soft=True)
        name = name_of(self._key.digest, self._key.model, self._maker, next(self._numbers))
        self._made[name] = (
            ray
            .remote(WarmEngineActor)
            .options(
                name=name,
                namespace=NAMESPACE,
                lifetime="detached",
                max_concurrency=16,
                max_restarts=0,
                **options,
            )
            .remote(self._key.title, self._maker)
        )
