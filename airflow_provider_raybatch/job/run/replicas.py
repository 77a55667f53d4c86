# SPDX-License-Identifier: Apache-2.0
"""The replicas of a run: a Ray Data pipeline, its actors, and the coordinator that they ask for rows.

The Dataset holds tickets, not rows: one for each replica. One map over it with a pool of replicas is the
whole pipeline, so a cluster that can hold the replicas can run the job.

Ray Data starts the actors, and drops those that it has no ticket for. Ray still starts an actor that was
dropped while it waited for room, and keeps a placement group until the job ends. So actors get names here, by
which the job ends those that wait but are not needed, and sees which groups can be removed.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import threading
import time
import uuid
import warnings
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import ray
import ray.data
from pydantic import SecretStr
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.job.engine.base import EngineInfo
from airflow_provider_raybatch.job.monitor.replica_progress import ReplicaProgress
from airflow_provider_raybatch.job.planning import cluster_view
from airflow_provider_raybatch.job.planning.node_groups import bundles, request
from airflow_provider_raybatch.job.planning.plan import Plan
from airflow_provider_raybatch.job.replica.coordinator import Coordinator
from airflow_provider_raybatch.job.replica.remote_call import RemoteCall
from airflow_provider_raybatch.job.replica.replica import Replica
from airflow_provider_raybatch.job.row_order.rows_to_do import Input
from airflow_provider_raybatch.job.run.cpu_tasks import on_this_node
from airflow_provider_raybatch.job.run.pipeline import Pipeline, of_task
from airflow_provider_raybatch.job.warm_engines.warm_source import engine_source
from airflow_provider_raybatch.job.work import CheckedModel, Job
from airflow_provider_raybatch.storage.folder import Folder


@dataclass
class _Actor:
    group: PlacementGroup | None
    was_seen: bool = False

    def has_ended(self, is_named: bool) -> bool:
        """Whether Ray has named it once, and does not now."""
        self.was_seen |= is_named
        return self.was_seen and not is_named


class ReplicaActors:
    """Those of one run."""

    def __init__(self, plan: Plan) -> None:
        self._bundles = (
            bundles(request(plan.cpus, plan.gpus, plan.accelerator_type)) if plan.spans_nodes else []
        )
        self._most = plan.replicas
        self._count, self._last = 0, ""
        self._actors: dict[str, _Actor] = {}
        self._lock = threading.Lock()

    def options(self) -> Callable[[], dict[str, Any]]:
        """A function for Ray Data's `ray_remote_args_fn`, which calls it for each actor that it starts.

        A replica that spans nodes takes the CPUs of its placement group's first bundle. vLLM's Ray executor
        finds the group by its actor, and puts a worker on the GPU of each bundle.
        """

        def make() -> dict[str, Any]:
            with self._lock:
                name = self._unused_name()
                group = self._actors[name].group if name in self._actors else None
            if group is None:
                return {"name": name}
            strategy = PlacementGroupSchedulingStrategy(group, placement_group_capture_child_tasks=True)
            return {"name": name, "scheduling_strategy": strategy}

        return make

    def _unused_name(self) -> str:
        """A new name, unless the last one is still free, or all actors have theirs.

        Ray Data also asks for options every half minute without starting an actor.
        """
        named = _named()
        is_free = self._last and named is not None and self._last not in named
        if not is_free and self._count < self._most:
            # PACK takes as few nodes as can be, and does not insist.
            group = placement_group(self._bundles, strategy="PACK") if self._bundles else None
            self._last = f"raybatch-replica-{uuid.uuid4().hex}"
            self._actors[self._last] = _Actor(group)
            self._count += 1
        return self._last

    def end_unused(self, started: Collection[str], left: Collection[str]) -> None:
        """End actors that wait for room and are not needed; remove placement groups of those that have ended.

        :param started: names of those that have ever started.
        :param left: names of those that left because no rows were left for them.
        """
        named, ended = _named(), set()
        if named is None:
            return
        with self._lock:
            for name, actor in list(self._actors.items()):
                if actor.has_ended(name in named):
                    ended.add(name)
                    self._forget(name)
            # The end of an actor that Ray Data has not dropped would fail the Dataset. Once one that left has
            # ended, those that wait for room were dropped before it.
            waiting = self._actors.keys() & named - set(started) if ended & set(left) else set()
        for name in waiting:
            with contextlib.suppress(ValueError, ray.exceptions.RayError):  # it has ended meanwhile
                ray.kill(ray.get_actor(name))

    def close(self) -> None:
        """Remove all placement groups, and end what runs in them."""
        with self._lock:
            for name in list(self._actors):
                self._forget(name)

    def _forget(self, name: str) -> None:
        group = self._actors.pop(name).group
        if group is not None:
            with contextlib.suppress(ray.exceptions.RayError):  # it ends with the job in any case
                remove_placement_group(group)


def _named() -> set[str] | None:
    """Names of the actors that have not ended for good; ``None`` if Ray does not answer."""
    try:
        return set(ray.util.list_named_actors())
    except ray.exceptions.RayError:
        return None


_ACTORS_EVERY, _ACTORS_SECONDS = 2.0, 1.0
"""Between two looks at actors that may not be needed, and for the coordinator to say which."""
_SOON = 15.0
"""Seconds in which a replica starts if there is room: its process takes two to five, as does the actor of a
warm engine."""
_POLL = 0.05
_CLOSE_SECONDS = 30.0


class Replicas:
    """Start at once, load the model when it is checked, and wait for rows.

    :param folder: the destination.
    :ivar coordinator: handle of the coordinator.
    :ivar began: epoch seconds of their start.
    :ivar at_once: how many found room then.
    """

    def __init__(
        self, spec: BatchInferenceSpec, environment: dict[str, SecretStr], folder: Folder, plan: Plan
    ) -> None:
        self.plan = plan
        self.at_once = cluster_view.idle_replicas(plan)
        self.began = self._looked = time.time()
        self._source = engine_source(spec, environment, plan)
        # On the driver's node, so that it lives as long as the driver.
        options = on_this_node() | self._source.coordinator_options()
        coordinator = of_task(Coordinator, spec.submission)
        self.coordinator = ray.remote(**options)(coordinator).remote(folder, self._source)
        leave = plan.fewest < plan.replicas
        self._actors = ReplicaActors(plan) if plan.spans_nodes or leave else None
        self.pipeline = Pipeline(lambda: self._dataset(spec, environment), spec, lambda row: None)

    def ask(self, question: RemoteCall) -> Any:
        """Let a replica call a function in the process that has imported its engine.

        :returns: what it returned; ``None`` if none starts soon, or none can call it.
        :raises Exception: what the function raises.
        """
        self.coordinator.ask.remote(question)
        asked_at = time.monotonic()
        while self.pipeline.is_alive():
            is_there, answer = ray.get(self.coordinator.answered.remote())
            if answer is not None:
                returned, error = answer
                if error is not None:
                    raise error
                return returned
            if not is_there and time.monotonic() - asked_at > _SOON:
                break
            time.sleep(_POLL)
        ray.get(self.coordinator.ask.remote(None))
        return None

    def load(self, model: CheckedModel) -> None:
        """Let them start their engines: the model is checked."""
        self.coordinator.load.remote(model)

    def begin(self, job: Job, plan: Plan, work: Input) -> None:
        """Give out the rows."""
        self.coordinator.begin.remote(work, job.part_folders, plan.fewest, [ray.put((job, plan))])

    def end_unused(self) -> None:
        """End those that wait for room and are not needed."""
        if self._actors is not None and time.time() - self._looked >= _ACTORS_EVERY:
            self._looked = time.time()
            # On a busy node they are looked at again. A late answer is of no use: others may have started.
            with contextlib.suppress(ray.exceptions.GetTimeoutError):
                self._actors.end_unused(*ray.get(self.coordinator.actors.remote(), timeout=_ACTORS_SECONDS))

    def engine(self) -> EngineInfo:
        """Description of an engine; empty where none has come up, or the coordinator is too busy to say."""
        with contextlib.suppress(ray.exceptions.GetTimeoutError):
            return ray.get(self.coordinator.engine.remote(), timeout=60) or EngineInfo()
        return EngineInfo()

    def reports(self) -> list[ReplicaProgress]:
        """The latest ones."""
        reports: list[ReplicaProgress] = ray.get(self.coordinator.snapshot.remote(), timeout=60)
        return reports

    def release(self) -> None:
        """End replicas that got no rows. One that starts its engine ends after that, or with the driver."""
        self.coordinator.release.remote()
        self._source.await_return(self.coordinator)
        threading.Thread(target=self._end_later, daemon=True).start()

    def _end_later(self) -> None:
        self.pipeline.join()
        self.end()

    def end(self) -> None:
        """End those that are still there."""
        # Ray Data would log that as an error.
        logging.getLogger("ray.data").setLevel(logging.CRITICAL)
        if self._actors is not None:
            self._actors.close()
        with contextlib.suppress(ray.exceptions.RayError):
            ray.get(self.coordinator.close.remote(), timeout=_CLOSE_SECONDS)
        with contextlib.suppress(ray.exceptions.RayError):
            ray.kill(self.coordinator)
        # Ray Data drops its actors in cycles of references: until Python collects them, they hold GPUs.
        gc.collect()

    def _dataset(self, spec: BatchInferenceSpec, environment: dict[str, SecretStr]) -> ray.data.Dataset:
        """The Dataset of tickets, mapped by replicas. Lazy: nothing runs until it is consumed.

        Replicas that find no room are pending. One that leaves returns its ticket, and at once each other
        that it gets; when all are used up, Ray Data drops the actors that have none.
        """
        plan = self.plan
        tickets = [{"ticket": number} for number in range(plan.replicas)]
        work = ray.data.from_items(tickets, override_num_blocks=plan.replicas)
        # No limit here: the coordinator counts crashes without a finished row.
        options: dict[str, Any] = {"num_cpus": plan.cpus, "max_restarts": -1, "max_task_retries": -1}
        if self._actors is not None:
            options["ray_remote_args_fn"] = self._actors.options()
        options |= self._source.replica_options(plan)
        # Ray 2.60 deprecates free-form remote options, but neither 2.56 nor 2.60 has named ones for restarts.
        warnings.filterwarnings("ignore", message="`ray_remote_args(_fn)?` is deprecated")
        replica_arguments = spec, environment, self.coordinator, plan.spans_nodes, self._source, plan.replicas
        return work.map_batches(
            of_task(Replica, spec.submission),
            fn_constructor_args=replica_arguments,
            batch_size=1,
            batch_format="numpy",
            # One ticket each, so that a late replica finds one.
            compute=ray.data.ActorPoolStrategy(size=plan.replicas, max_tasks_in_flight_per_actor=1),
            max_concurrency=2,
            **options,
        )
