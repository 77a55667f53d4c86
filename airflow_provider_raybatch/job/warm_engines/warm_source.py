# SPDX-License-Identifier: Apache-2.0
"""Warm engines as the engines of a job: what driver and replicas ask; the coordinator asks `pool.py`."""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import ray
from pydantic import SecretStr

from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.job.engine.base import EngineDeadError
from airflow_provider_raybatch.job.engine_process.proxy import EngineProxy
from airflow_provider_raybatch.job.monitor.replica_progress import ReplicaProgress
from airflow_provider_raybatch.job.planning.plan import Plan
from airflow_provider_raybatch.job.warm_engines.front_end import RemoteFrontEnd
from airflow_provider_raybatch.job.warm_engines.lease import Holder
from airflow_provider_raybatch.job.warm_engines.pool import WarmEnginePool
from airflow_provider_raybatch.job.warm_engines.registry import (
    NAMESPACE,
    EngineKey,
    WarmEngineRegistry,
    key_of,
    maker_name,
)
from airflow_provider_raybatch.job.warm_engines.source import OWN_ENGINES, EngineAccess, EngineSource

_POLL = 0.05
_ASK_SECONDS = 30.0
"""For an answer from beside an idle engine; after it, the job does as without one."""
_GIVE_BACK_SECONDS = 10.0
"""For replicas that have got no rows to give their engines back."""


class WarmEngineAccess(EngineAccess):
    """What a replica asks for a warm engine.

    :param seconds: for which the engine waits for its next holder.
    :param coordinator: handle of the coordinator.
    """

    def __init__(self, report: ReplicaProgress, holder: Holder, seconds: float, coordinator: Any) -> None:
        self._report = report
        self._holder = holder
        self._seconds = seconds
        self._coordinator = coordinator
        self._front_end: RemoteFrontEnd | None = None
        report.await_engine()

    def acquire(self, is_needed: Callable[[], bool], pause: float) -> bool:
        """See :class:`EngineAccess`."""
        while is_needed():
            actor = ray.get(self._coordinator.engine_for.remote(self._holder, self._report.node))
            if actor is not None:
                self._report.start()
                self._front_end = RemoteFrontEnd(actor, self._holder, self._seconds)
                return True
            time.sleep(pause)
        return False

    def import_engine(
        self, spec: BatchInferenceSpec, environment: dict[str, SecretStr], spans_nodes: bool
    ) -> EngineProxy:
        """See :class:`EngineAccess`."""
        assert self._front_end is not None
        self._front_end.begin(environment, spec.engine == "vllm")
        gpus = self._front_end.gpus
        self._report.take(gpus, [self._front_end.node] * len(gpus))
        return EngineProxy(self._front_end)

    def should_restart(self, death: EngineDeadError, is_first: bool, is_needed: Callable[[], bool]) -> bool:
        """See :class:`EngineAccess`: the next process gets another engine."""
        try:
            return is_needed()
        except ray.exceptions.ActorDiedError:  # the coordinator has ended with the job
            return False

    def opened(self) -> None:
        """See :class:`EngineAccess`. The engine's actor measures."""

    def measure(self) -> None:
        """See :class:`EngineAccess`."""
        if self._front_end is not None:
            if self._report.state == "starting":
                self._report.loaded = self._front_end.loaded
            self._report.gpu_utilization = self._front_end.gpu_utilization

    async def give_back(self, close: Callable[[], Awaitable[None]]) -> None:
        """See :class:`EngineAccess`."""
        if self._front_end is not None and not await self._coordinator.keeps_engines.remote():
            self._front_end.kill()
        await close()


@dataclass(frozen=True)
class WarmEngineSource(EngineSource):
    """Engines that stay on the cluster after the job.

    :param most: replicas of the job.
    :param maker: 8 hex digits of the job's own, see
        :func:`~airflow_provider_raybatch.job.warm_engines.registry.maker_name`.
    """

    key: EngineKey
    most: int
    maker: str = field(default_factory=lambda: secrets.token_hex(4))

    def has_idle(self) -> bool:
        """See :class:`EngineSource`."""
        with contextlib.suppress(ray.exceptions.RayError):  # else it is found later
            states = WarmEngineRegistry(self.key.digest).states().values()
            return any(state is not None and state.is_free for state in states)
        return False

    def ask(self, function: Callable[..., Any], *arguments: Any) -> tuple[Any, Exception | None] | None:
        """See :class:`EngineSource`."""
        registry = WarmEngineRegistry(self.key.digest)
        with contextlib.suppress(ray.exceptions.RayError):  # it ends, say, or is of another version
            for name, state in registry.states().items():
                if state is not None and state.is_free_for(self.maker):
                    asked = registry.actor(name).ask.remote(_ASK_SECONDS, function, *arguments)
                    answer: tuple[Any, Exception | None] | None = ray.get(asked, timeout=_ASK_SECONDS)
                    return answer
        return None

    def coordinator_options(self) -> dict[str, Any]:
        """See :class:`EngineSource`. By its name, engines find out whether their job is gone."""
        return {"name": maker_name(self.maker), "namespace": NAMESPACE}

    def replica_options(self, plan: Plan) -> dict[str, Any]:
        """See :class:`EngineSource`. The engine's actor holds the GPUs."""
        return {}

    def await_return(self, coordinator: Any) -> None:
        """See :class:`EngineSource`."""
        ends = time.monotonic() + _GIVE_BACK_SECONDS
        with contextlib.suppress(ray.exceptions.RayError):  # a job that is refused says why, not that
            while ray.get(coordinator.close.remote(), timeout=_GIVE_BACK_SECONDS) and time.monotonic() < ends:
                time.sleep(_POLL)

    def pool(self) -> WarmEnginePool:
        """See :class:`EngineSource`."""
        return WarmEnginePool(self.key, self.maker, self.most)

    def access(self, holder: Holder, report: ReplicaProgress, coordinator: Any) -> WarmEngineAccess:
        """See :class:`EngineSource`."""
        return WarmEngineAccess(report, holder, self.key.seconds, coordinator)


def engine_source(spec: BatchInferenceSpec, environment: Mapping[str, SecretStr], plan: Plan) -> EngineSource:
    """Where the replicas of this job get their engines: by default each has its own.

    :param environment: variables of the engines' processes.
    """
    if spec.keep_warm is None or plan.spans_nodes:
        return OWN_ENGINES
    return WarmEngineSource(key_of(spec, environment, plan, spec.keep_warm), plan.replicas)
