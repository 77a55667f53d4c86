# SPDX-License-Identifier: Apache-2.0
"""Replicas whose GPUs lie on several nodes: a placement group for each, and its end.

Ray Data starts an actor for each replica, and starts it again when it dies; the placement group stays for the
next process. When the actor has ended for good (its replica has left, or was never needed), nothing of Ray's
removes the group before the job ends, and it would hold GPUs that nobody uses. So actors get names, and a
group whose name is gone is removed.
"""

from __future__ import annotations

import contextlib
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from airflow_provider_raybatch.job.planning.node_groups import bundles, request
from airflow_provider_raybatch.job.planning.plan import Plan

_SECONDS_TO_BE_SEEN = 60.0
"""An actor that no look has found for so long has ended between two of them."""


@dataclass
class _Place:
    group: PlacementGroup
    made: float
    was_seen: bool = False


class PlacementGroups:
    """Those of one run."""

    def __init__(self, plan: Plan) -> None:
        self._bundles = bundles(request(plan.cpus, plan.gpus, plan.accelerator_type))
        self._places: dict[str, _Place] = {}
        self._lock = threading.Lock()

    def options(self) -> Callable[[], dict[str, Any]]:
        """A function for Ray Data's `ray_remote_args_fn`, which calls it for each actor that it starts.

        The replica runs in the first bundle and takes its CPUs, but no GPU. vLLM's Ray executor finds the
        group by the actor in which it starts, and puts a worker on the GPU of each bundle.
        """

        def make() -> dict[str, Any]:
            # PACK takes as few nodes as can be, and does not insist.
            group = placement_group(self._bundles, strategy="PACK")
            name = f"raybatch-replica-{uuid.uuid4().hex}"
            with self._lock:
                self._places[name] = _Place(group, time.monotonic())
            strategy = PlacementGroupSchedulingStrategy(group, placement_group_capture_child_tasks=True)
            return {"name": name, "scheduling_strategy": strategy}

        return make

    def remove_unused(self) -> None:
        """Remove those whose actor has ended for good: Ray then forgets its name."""
        try:
            named = set(ray.util.list_named_actors())
        except ray.exceptions.RayError:  # the next look will do
            return
        now = time.monotonic()
        with self._lock:
            for name, place in list(self._places.items()):
                place.was_seen |= name in named
                is_known = place.was_seen or now - place.made > _SECONDS_TO_BE_SEEN
                if name not in named and is_known:
                    self._remove(name)

    def remove(self) -> None:
        """Remove all of them, and end what runs in them."""
        with self._lock:
            for name in list(self._places):
                self._remove(name)

    def _remove(self, name: str) -> None:
        place = self._places.pop(name)
        with contextlib.suppress(ray.exceptions.RayError):  # it ends with the job in any case
            remove_placement_group(place.group)
