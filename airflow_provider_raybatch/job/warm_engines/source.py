# SPDX-License-Identifier: Apache-2.0
"""Where the replicas of a job get their engines. The classes here give each replica an engine of its own.

Driver, coordinator and replica each ask one of these classes. `warm_source.py` has those for warm engines,
whose actor measures once a second, and tells whether a starting engine makes progress.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

import ray
from pydantic import SecretStr

from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.job.engine.base import EngineDeadError
from airflow_provider_raybatch.job.engine.gpu import GpuMeter, assigned
from airflow_provider_raybatch.job.engine_process.proxy import EngineProxy, import_engine
from airflow_provider_raybatch.job.monitor.replica_progress import ReplicaProgress
from airflow_provider_raybatch.job.planning.plan import Plan
from airflow_provider_raybatch.job.warm_engines.lease import Holder
from airflow_provider_raybatch.job.work import CheckedModel


class EnginePool:
    """What the coordinator asks for engines."""

    most = 0
    """Replicas of the job."""

    def has_engine(self, process: str) -> bool:
        """Whether a replica's process has what its engine needs of the cluster."""
        return True

    def engine_for(self, holder: Holder, node: str) -> Any:
        """The actor of the warm engine that `holder` has now; ``None`` while it must wait for one.

        :param node: id of the holder's node.
        :raises RaybatchError: there will be none.
        """
        raise NotImplementedError

    def joined(self, process: str) -> None:
        """The process has opened its engine."""

    def gone(self, process: str) -> None:
        """The process needs no engine any more, or has died."""

    @property
    def coming(self) -> int:
        """Replicas that are about to join with an idle engine."""
        return 0

    @property
    def has_given(self) -> bool:
        """Whether a living process has a warm engine."""
        return False

    def close(self, model: CheckedModel | None = None) -> None:
        """Make no more engines.

        :param model: engines that still start open it, and then wait for the next job.
        """


class EngineAccess:
    """What a replica asks for its engine.

    :param report: of the replica; `gpus`, `loaded` and `gpu_utilization` are written here.
    """

    def __init__(self, report: ReplicaProgress) -> None:
        self._report = report
        self._meter: GpuMeter | None = None
        report.take(_gpus())

    def acquire(self, is_needed: Callable[[], bool], pause: float) -> bool:
        """Wait until there is an engine for the replica.

        :param pause: seconds between two attempts.
        :returns: `False` if the replica is no longer needed.
        """
        return True

    def import_engine(
        self, spec: BatchInferenceSpec, environment: dict[str, SecretStr], spans_nodes: bool
    ) -> EngineProxy | None:
        """See :func:`~airflow_provider_raybatch.job.engine_process.proxy.import_engine`.

        :param environment: variables of the engine's processes.
        :raises EngineDeadError: the engine is lost.
        """
        return import_engine(spec, spans_nodes)

    def should_restart(self, death: EngineDeadError, is_first: bool, is_needed: Callable[[], bool]) -> bool:
        """Whether the replica's process starts again after its engine died at its start.

        :param is_first: whether this is the first process of the replica.
        :returns: `False` if the job has ended.
        :raises EngineDeadError: `death`, if another attempt is useless.
        """
        if not is_first:
            raise death
        return True

    def opened(self) -> None:
        """The engine is ready."""
        self._meter = GpuMeter()

    def measure(self) -> None:
        """Bring the report up to date."""
        if self._report.state == "starting":
            self._report.loaded = progress()
        if self._meter is not None:
            self._meter.sample()
            self._report.gpu_utilization = self._meter.mean

    async def give_back(self, close: Callable[[], Awaitable[None]]) -> None:
        """Let the next job have the engine. All its answers are written.

        :param close: closes the replica's engine.
        """


class EngineSource:
    """What the driver asks for engines. The coordinator and each replica get a copy."""

    def has_idle(self) -> bool:
        """Whether a warm engine can be taken now."""
        return False

    def ask(self, function: Callable[..., Any], *arguments: Any) -> tuple[Any, Exception | None] | None:
        """Call a function beside an idle warm engine, in a new process that has imported what engines need.

        :returns: what the function returned, or raised; ``None`` if none answers in time.
        """
        return None

    def coordinator_options(self) -> dict[str, Any]:
        """Ray's options of the coordinator's actor."""
        return {}

    def replica_options(self, plan: Plan) -> dict[str, Any]:
        """Ray's options of a replica's actor, for the GPUs that it holds itself."""
        return {} if plan.spans_nodes else gpu_options(plan.gpus, plan.accelerator_type)

    def await_return(self, coordinator: Any) -> None:
        """Let replicas give their engines back: they end with the driver, at the latest."""

    def pool(self) -> EnginePool:
        """For the coordinator."""
        return EnginePool()

    def access(self, holder: Holder, report: ReplicaProgress, coordinator: Any) -> EngineAccess:
        """For a replica's process."""
        return EngineAccess(report)


OWN_ENGINES = EngineSource()


def gpu_options(gpus: float, accelerator_type: str | None) -> dict[str, Any]:
    """Ray's options of an actor that holds GPUs of one node, or a share of one."""
    options: dict[str, Any] = {"num_gpus": gpus}
    if accelerator_type:
        options["accelerator_type"] = accelerator_type
    return options


def _gpus() -> list[str]:
    return assigned(ray.get_runtime_context())


_EVERY = 1.0


class Measurements:
    """Measured in a thread of its own: what hangs or fails here must not keep the engine alive.

    :ivar gpu: to be replaced where its mean begins anew.
    :ivar loaded: see :func:`~airflow_provider_raybatch.job.warm_engines.source.progress`.
    """

    def __init__(self) -> None:
        self.gpu, self.loaded = GpuMeter(), 0
        threading.Thread(target=self._measure, name="raybatch-measure", daemon=True).start()

    def _measure(self) -> None:
        while True:
            time.sleep(_EVERY)
            with contextlib.suppress(Exception):  # of NVML's
                self.gpu.sample()
            with contextlib.suppress(Exception):  # of the system's
                self.loaded = progress()


_STEP = 16 * 1024 * 1024

_measured = 0
"""Bytes that the measuring itself has read: to find children, it reads of each process of the machine."""


def progress() -> int:
    """Bytes that this process and its children have read and written so far, in steps of 16 MiB.

    A download or a load from a slow disk makes some steps each minute, a process that hangs makes none. 0 if
    they can't be measured.
    """
    try:
        import psutil  # vLLM brings it
    except ImportError:
        return 0
    global _measured
    moved = 0
    with contextlib.suppress(psutil.Error):
        here = psutil.Process()
        before = _moved(here)
        moved = before + sum(map(_moved, here.children(recursive=True)))
        moved -= _measured
        _measured += _moved(here) - before
    return moved // _STEP


def _moved(process: Any) -> int:
    try:
        counters = process.io_counters()
    except Exception:  # it has ended, is another user's, or this is not Linux
        return 0
    # The first two count mapped files, the last two what is in the page cache already.
    return int(counters.read_bytes + counters.write_bytes + counters.read_chars + counters.write_chars)
