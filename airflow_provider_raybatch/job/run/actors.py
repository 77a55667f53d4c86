# SPDX-License-Identifier: Apache-2.0
"""The actors of replicas that may leave, or whose GPUs lie on several nodes: their names, places and ends.

Ray Data starts the actors, and drops those that it has no ticket for. Ray still starts an actor that was
dropped while it waited for room, and keeps a placement group until the job ends. So actors get names here, by
which the job ends those that wait but are not needed, and sees which groups can be removed.
"""

from __future__ import annotations

import contextlib
import threading
import uuid
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from airflow_provider_raybatch.job.planning.node_groups import bundles, request
from airflow_provider_raybatch.job.planning.plan import Plan


@dataclass
class _Actor:
    group: PlacementGroup | None
    was_seen: bool = False


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
                if actor.was_seen and name not in named:
                    ended.add(name)
                    self._forget(name)
                actor.was_seen |= name in named
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
