# SPDX-License-Identifier: Apache-2.0
"""A replica: one engine in a Ray Data actor, from its start to its end.

Everything but the engine runs in threads, so the engine never waits.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import AsyncIterator
from typing import Any

import ray
from pydantic import SecretStr

from airflow_provider_raybatch.contract.failures import FailureClass, RaybatchError
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.contract.text import count_of
from airflow_provider_raybatch.job.control.private_package import set_environment
from airflow_provider_raybatch.job.engine import loading
from airflow_provider_raybatch.job.engine.base import EngineDeadError
from airflow_provider_raybatch.job.engine.gpu import GpuMeter, assigned
from airflow_provider_raybatch.job.engine.opening import import_engine, open_engine
from airflow_provider_raybatch.job.engine.proxy import EngineProxy
from airflow_provider_raybatch.job.input.reader import Reader
from airflow_provider_raybatch.job.monitor.board import ReplicaReport, Reporter
from airflow_provider_raybatch.job.replica.crash_log import CrashLog, left_by_the_last, path_of
from airflow_provider_raybatch.job.replica.remote_call import RemoteCall
from airflow_provider_raybatch.job.replica.request_builder import RequestBuilder, read_columns
from airflow_provider_raybatch.job.replica.worker import ENGINE_DIED, ReplicaWorker
from airflow_provider_raybatch.job.replica.workplace import Workplace
from airflow_provider_raybatch.job.scheduling.messages import StaleReplicaError
from airflow_provider_raybatch.job.warm_engines.engine_key import EngineKey
from airflow_provider_raybatch.job.warm_engines.front_end import RemoteFrontEnd
from airflow_provider_raybatch.job.warm_engines.lease import Holder
from airflow_provider_raybatch.storage import left_files

_LOOK_EVERY, _LOOK_EVERY_OF_MANY = 0.1, 1.0
"""Seconds between two looks for what the driver has found out: a thousand replicas may wait for it. The less,
the more at once they begin: in a short job, one that is there a second earlier ends a second earlier."""
_LOOKS_A_SECOND = 200
"""Of all replicas, where they are not more than that."""


class Replica(Workplace):
    """The class that ``Dataset.map_batches`` runs as an actor.

    It starts while the driver checks the job, and imports its engine at once. Where it has done so, the model
    can be checked. It starts the engine when that has passed, and takes rows when everything has.

    :param spec: the job's, as the driver got it.
    :param environment: variables of its process; Ray Data exports them as text, so they are ``SecretStr``.
    :param coordinator: handle of the :class:`~airflow_provider_raybatch.job.replica.coordinator.Coordinator`.
    :param spans_nodes: whether its GPUs may lie on several nodes.
    :param wanted: the kept engine that it shall take or make; by default it has one of its own.
    :param replicas: of the job.
    :raises RaybatchError: the engine can't be started, or dies each time before it has finished a row.
    """

    def __init__(
        self,
        spec: BatchInferenceSpec,
        environment: dict[str, SecretStr],
        coordinator: Any,
        spans_nodes: bool,
        wanted: EngineKey | None = None,
        replicas: int = 1,
    ) -> None:
        set_environment(environment)
        left_files.sweep()
        self._look_every = min(_LOOK_EVERY_OF_MANY, max(_LOOK_EVERY, replicas / _LOOKS_A_SECOND))
        actor = _actor()
        # In another container, process numbers begin anew.
        process = f"{actor}-{os.getpid()}-{secrets.token_hex(4)}"
        self._user = Holder(actor, process)
        state = "starting" if wanted is None else "waiting"
        gpus = _gpus() if wanted is None else []
        report = ReplicaReport(process, _node(), state, started=time.time(), gpus=gpus)
        super().__init__(spec.submission, coordinator, report)
        self._gpu: GpuMeter | None = None
        self._kept: RemoteFrontEnd | None = None
        self._has_job = self._has_left = False
        self.reporter = Reporter(
            coordinator, self.report, self._measure, self.draining.set, self.asked_to_ask.set
        )
        with self.reporter.telling():
            self._check_starts(spec)
            if not self._is_needed():
                self._leave()
                return
            try:
                if not self._open(spec, environment, spans_nodes, wanted):
                    self._leave()
                    return
            except EngineDeadError:
                if wanted is None and not self._is_first:
                    raise
                if wanted is not None and self._job_has_ended():
                    self._leave()  # its engine is opened for the next job
                    return
                os._exit(ENGINE_DIED)  # begin anew; a kept engine with another one
        self._gpu = GpuMeter() if wanted is None else None
        coordinator.describe.remote(self.engine.info)
        self.report.startup_seconds = round(time.time() - self.report.started, 2)
        self.cpu_before = time.process_time()
        self.report.state = "ready"
        self.reporter.send()

    def _open(
        self,
        spec: BatchInferenceSpec,
        environment: dict[str, SecretStr],
        spans_nodes: bool,
        wanted: EngineKey | None,
    ) -> bool:
        """Open the engine.

        :returns: `False` if it is not needed.
        """
        if wanted is not None:
            keeper = self._wait_for_engine()
            if keeper is None:
                return False
            self._kept = RemoteFrontEnd(keeper, self._user, wanted.seconds)
            self._kept.begin(environment, spec.engine == "vllm")
            self.report.gpus = self._kept.gpus
        apart = import_engine(spec, spans_nodes, self._kept)
        self.report.imported = time.time()
        while isinstance(checked := self._told(self.coordinator.model, self.process), RemoteCall):
            self._answer(checked, apart)
        if not (checked and self._is_needed()):
            if apart is not None:
                apart.close()
            return False
        self.engine = open_engine(checked.spec, spans_nodes, apart, checked.files)
        return True

    def _wait_for_engine(self) -> Any:
        """The actor that keeps an engine for this one; ``None`` if it is not needed any more."""
        while self._is_needed():
            keeper = ray.get(self.coordinator.engine_for.remote(self._user, self.report.node))
            if keeper is not None:
                self.report.state, self.report.started = "starting", time.time()
                return keeper
            time.sleep(self._look_every)
        return None

    def _told(self, ask: Any, *arguments: Any) -> Any:
        """What the driver tells by the coordinator, as soon as it does."""
        while (answer := ray.get(ask.remote(*arguments))) is None:
            time.sleep(self._look_every)
        return answer

    def _check_starts(self, spec: BatchInferenceSpec) -> None:
        path = path_of(spec.destination, self._user.actor)
        begun = left_by_the_last(path)
        self._is_first = begun is None
        self.begun = CrashLog(path)
        consecutive_failures = self._told(self.coordinator.start, self._user.actor, self.process, begun)
        most = spec.max_restarts
        if consecutive_failures > most:
            raise RaybatchError(
                f"max_restarts: the engine died again and again without finishing a row, more often than the "
                f"{count_of(most, 'time')} allowed; its log on the cluster says why.",
                FailureClass.ENGINE_DEAD,
            )

    def _answer(self, question: RemoteCall, apart: EngineProxy | None) -> None:
        returned, error = None, None
        try:
            function, arguments = question.function, question.arguments
            returned = function(*arguments) if apart is None else apart.call(function, *arguments)
        except EngineDeadError:
            os._exit(ENGINE_DIED)  # begin anew
        except Exception as failed:
            error = failed
        self.coordinator.answer.remote(self.process, returned, error)

    def _is_needed(self) -> bool:
        return bool(ray.get(self.coordinator.is_needed.remote(self.process, _name())))

    def _job_has_ended(self) -> bool:
        try:
            return not self._is_needed()
        except ray.exceptions.ActorDiedError:  # the coordinator has ended with it
            return True

    def _leave(self) -> None:
        """Take no more part: its GPUs are free, or will be when Ray Data ends the actor without a ticket."""
        self._has_left = True
        self.begun.remove()
        self.report.state = "ended"
        self.reporter.send()

    def _measure(self) -> None:
        if self._has_left:
            return
        if self.report.state == "starting":
            self.report.loaded = loading.steps() if self._kept is None else self._kept.steps
        elif self.report.state != "waiting":  # for an engine: it loads nothing, and nothing moves
            self.report.tokens_in_flight = self.engine.tokens_in_flight()
        if self._gpu is not None:
            self._gpu.sample()
            self.report.gpu_utilization = self._gpu.mean
        elif self._kept is not None:
            self.report.gpu_utilization = self._kept.gpu_utilization
        if self.draining.is_set() and self.flight is None:
            self.report.state = "drained"
        self.count()

    async def __call__(self, batch: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        """Work until every row of the input is written; a ticket each for whoever comes."""
        for number in batch["ticket"]:
            if not self._has_left:
                with self.reporter.telling():
                    await self._work()
            yield {"ticket": [number]}

    def _takes_on(self) -> bool:
        """Wait until there are rows, or will be none."""
        if self._has_job:
            return True
        told = self._told(self.coordinator.assignment)
        if told:
            job, self.plan = ray.get(told[0])
            self.job, self._has_job = job, True
            texts = job.spec.text_columns()
            self.reader = Reader(job.listing, read_columns(job.spec), job.credentials, texts=texts)
            self.asker = RequestBuilder(job.spec, job.task.renderer(), job.keyer)
        return self._has_job

    async def _work(self) -> None:
        if not await self.thread(self._takes_on):
            await self._close()
            return
        shift = ReplicaWorker(self)
        try:
            await shift.work()
        except StaleReplicaError:
            os._exit(ENGINE_DIED)  # others have its rows: begin anew
        if shift.leaves:
            await self._close()

    async def let_rest(self) -> None:
        """Give a kept engine back, before the job can end."""
        if self._kept is None:
            return
        if not await self.coordinator.keeps_engines.remote():
            self._kept.kill()
        await self.thread(self.engine.close)

    async def _close(self) -> None:
        await self.thread(self.engine.close)
        self._leave()


def _actor() -> str:
    return str(ray.get_runtime_context().get_actor_id() or "local")


def _name() -> str:
    return str(ray.get_runtime_context().get_actor_name() or "")


def _gpus() -> list[str]:
    return assigned(ray.get_runtime_context())


def _node() -> str:
    return str(ray.get_runtime_context().get_node_id())
