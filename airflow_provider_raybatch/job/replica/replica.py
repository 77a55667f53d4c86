# SPDX-License-Identifier: Apache-2.0
"""A replica: one engine in a Ray Data actor, from its start to its end.

Everything but the engine runs in threads, so the engine never waits.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import ray
from pydantic import SecretStr

from airflow_provider_raybatch.contract.failures import FailureClass, RaybatchError
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.contract.text import count_of
from airflow_provider_raybatch.job.control.private_package import set_environment
from airflow_provider_raybatch.job.control.process import freeze_gc_heap
from airflow_provider_raybatch.job.engine.base import EngineDeadError, TogetherEngine
from airflow_provider_raybatch.job.engine_process.proxy import EngineProxy, open_engine
from airflow_provider_raybatch.job.failures.public_reasons import guarded
from airflow_provider_raybatch.job.monitor.replica_progress import ReplicaProgress, Reporter
from airflow_provider_raybatch.job.replica.crash_log import CrashLog, left_by_the_last, path_of
from airflow_provider_raybatch.job.replica.process import ReplicaProcess
from airflow_provider_raybatch.job.replica.remote_call import RemoteCall
from airflow_provider_raybatch.job.replica.row_asker import RowAsker, steps_of
from airflow_provider_raybatch.job.replica.worker import ENGINE_DIED, ReplicaWorker
from airflow_provider_raybatch.job.scheduling.messages import StaleReplicaError
from airflow_provider_raybatch.job.steps.columns import reader_of
from airflow_provider_raybatch.job.warm_engines.lease import Holder
from airflow_provider_raybatch.job.warm_engines.source import OWN_ENGINES, EngineSource
from airflow_provider_raybatch.storage import local_files

_POLL, _LONGEST_POLL = 0.1, 1.0
"""Seconds between two questions to the coordinator. Shorter polling starts replicas closer together, which
matters in short jobs."""
_POLLS_A_SECOND = 200
"""Questions a second of up to 200 replicas together. A larger number of replicas asks once a second each."""


class Replica(ReplicaProcess):
    """The class that ``Dataset.map_batches`` runs as an actor.

    It starts while the driver checks the job, and imports its engine at once. Then the model can be checked.
    It starts the engine when that has passed, and takes rows when everything has.

    :param spec: the job's, as the driver got it.
    :param environment: variables of its process; Ray Data exports them as text, so they are ``SecretStr``.
    :param coordinator: handle of the :class:`~airflow_provider_raybatch.job.replica.coordinator.Coordinator`.
    :param spans_nodes: whether its GPUs may lie on several nodes.
    :param source: of its engine.
    :param replicas: of the job.
    :raises RaybatchError: the engine can't be started, or dies each time before it has finished a row.
    """

    def __init__(
        self,
        spec: BatchInferenceSpec,
        environment: dict[str, SecretStr],
        coordinator: Any,
        spans_nodes: bool,
        source: EngineSource = OWN_ENGINES,
        replicas: int = 1,
    ) -> None:
        set_environment(environment)
        local_files.sweep()
        self._poll = min(_LONGEST_POLL, max(_POLL, replicas / _POLLS_A_SECOND))
        self._actor = _actor()
        # In another container, process numbers begin anew.
        process = f"{self._actor}-{os.getpid()}-{secrets.token_hex(4)}"
        super().__init__(spec.submission, coordinator, _first_report(process, spec, spans_nodes))
        self._access = source.access(Holder(self._actor, process), self.report, coordinator)
        self._has_job = self._has_left = False
        self.reporter = Reporter(
            coordinator, self.report, self._measure, self.draining.set, self.asked_to_ask.set
        )
        self._shows_rows = spec.shows_rows
        with self.reporter.reporting_failure(), guarded(self._shows_rows):
            self._check_starts(spec)
            try:
                is_open = self._is_needed() and self._open(spec, environment, spans_nodes)
            except EngineDeadError as death:
                if self._access.should_restart(death, self._is_first, self._is_needed):
                    os._exit(ENGINE_DIED)  # begin anew
                is_open = False
            if not is_open:
                self._leave()
                return
        self._access.opened()
        coordinator.describe.remote(self.engine.info)
        self.cpu_before = time.process_time()
        self.report.ready()
        self.reporter.send()

    def _open(self, spec: BatchInferenceSpec, environment: dict[str, SecretStr], spans_nodes: bool) -> bool:
        """Open the engine. Returns `False` if it is not needed."""
        if not self._access.acquire(self._is_needed, self._poll):
            return False
        proxy = self._access.import_engine(spec, environment, spans_nodes)
        self.report.imported = time.time()
        while isinstance(checked := self._told(self.coordinator.model, self.process), RemoteCall):
            self._answer(checked, proxy)
        if not (checked and self._is_needed()):
            if proxy is not None:
                proxy.close()
            return False
        self.engine = open_engine(checked.spec, spans_nodes, proxy, checked.files)
        return True

    def _told(self, ask: Any, *arguments: Any) -> Any:
        """The coordinator's answer, as soon as the driver has given it one."""
        while (answer := ray.get(ask.remote(*arguments))) is None:
            time.sleep(self._poll)
        return answer

    def _check_starts(self, spec: BatchInferenceSpec) -> None:
        path = path_of(spec.destination, self._actor)
        begun = left_by_the_last(path)
        self._is_first = begun is None
        self.begun = CrashLog(path)
        consecutive_failures = self._told(self.coordinator.start, self._actor, self.process, begun)
        if consecutive_failures > spec.max_restarts:
            raise RaybatchError(
                f"max_restarts: the engine died again and again without finishing a row, more often than the "
                f"{count_of(spec.max_restarts, 'time')} allowed; its log on the cluster says why.",
                FailureClass.ENGINE_DEAD,
            )

    def _answer(self, call: RemoteCall, proxy: EngineProxy | None) -> None:
        returned, error = None, None
        try:
            function, arguments = call.function, call.arguments
            returned = function(*arguments) if proxy is None else proxy.call(function, *arguments)
        except EngineDeadError:
            os._exit(ENGINE_DIED)  # begin anew
        except Exception as failed:
            error = failed
        self.coordinator.answer.remote(self.process, returned, error)

    def _is_needed(self) -> bool:
        return bool(ray.get(self.coordinator.is_needed.remote(self.process, _name())))

    def _leave(self) -> None:
        """Take no more part: its GPUs are free, or will be when Ray Data ends the actor without a ticket."""
        self._has_left = True
        self.begun.remove()
        self.report.end()
        self.reporter.send()

    def _measure(self) -> None:
        if self._has_left:
            return
        self._access.measure()
        if self.report.state not in {"starting", "waiting"}:  # for an engine
            self.report.tokens_in_flight = self.engine.tokens_in_flight()
        if self.draining.is_set() and self.inflight is None:
            self.report.state = "drained"
        self.count()

    async def __call__(self, batch: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        """Work until every row of the input is written. Each process that starts takes a ticket."""
        for number in batch["ticket"]:
            if not self._has_left:
                with self.reporter.reporting_failure(), guarded(self._shows_rows):
                    await self._work()
            yield {"ticket": [number]}

    def _takes_on(self) -> bool:
        """Wait until there are rows, or will be none."""
        if self._has_job:
            return True
        told = self._told(self.coordinator.job)
        if told:
            job, self.plan = ray.get(told[0])
            self.job, self._has_job = job, True
            self.reader = reader_of(job)
            if any(step.spec.question.step.each for step in job.questions):
                self.engine = TogetherEngine(self.engine)
            self.questions = steps_of(job, self.engine, self.process)
            self.asker = RowAsker(job, self.questions)
            freeze_gc_heap()
        return self._has_job

    async def _work(self) -> None:
        if not await self.thread(self._takes_on):
            await self._close()
            return
        await self.engine.prepare()
        worker = ReplicaWorker(self)
        try:
            await worker.work()
        except StaleReplicaError:
            os._exit(ENGINE_DIED)  # others have its rows: begin anew
        if worker.leaves:
            await self._close()

    async def _close(self) -> None:
        await self.thread(self.engine.close)
        self._leave()


def _first_report(process: str, spec: BatchInferenceSpec, spans_nodes: bool) -> ReplicaProgress:
    return ReplicaProgress(
        process,
        _node(),
        started=time.time(),
        nodes=_nodes_of_gpus() if spans_nodes else [],
        gpu_share=spec.num_gpus if spec.shares_gpu else None,
    )


def _actor() -> str:
    return str(ray.get_runtime_context().get_actor_id() or "local")


def _name() -> str:
    return str(ray.get_runtime_context().get_actor_name() or "")


def _node() -> str:
    return str(ray.get_runtime_context().get_node_id())


def _nodes_of_gpus() -> list[str]:
    """Ids of the nodes of this actor's GPUs: each has a bundle of its placement group."""
    with suppress(Exception):  # only the types of its GPUs are less exact then
        group = ray.util.get_current_placement_group()
        if group is not None:
            return list(ray.util.placement_group_table(group)["bundles_to_node_id"].values())
    return []
