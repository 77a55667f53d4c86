# SPDX-License-Identifier: Apache-2.0
"""A process on each GPU of a replica that spans nodes, as vLLM's Ray executor has.

A dry run then shows whether Ray places them, and what the job does when one dies.
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class WorkerPlace:
    """Where a worker runs: Ray's id of the node, and Ray's ids of its GPUs."""

    node: str
    pid: int
    gpus: tuple[str, ...]


class EchoWorkers:
    """Started on the bundles of the placement group in which this actor runs, and ended with it.

    :raises RuntimeError: the actor runs in no placement group.
    """

    def __init__(self) -> None:
        import ray
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        group = ray.util.get_current_placement_group()
        if group is None:
            raise RuntimeError("The replica runs in no placement group.")
        kind = ray.remote(num_cpus=0, num_gpus=1)(_Worker)
        bundles = [number for number, bundle in enumerate(group.bundle_specs) if bundle.get("GPU")]
        places = (PlacementGroupSchedulingStrategy(group, number) for number in bundles)
        self._workers: list[Any] = [kind.options(scheduling_strategy=place).remote() for place in places]
        self.places: list[WorkerPlace] = ray.get([worker.place.remote() for worker in self._workers])
        self._running = [worker.run.remote() for worker in self._workers]

    @property
    def is_whole(self) -> bool:
        """Whether all are alive."""
        import ray

        ended, _ = ray.wait(self._running, timeout=0)
        return not ended

    def close(self) -> None:
        """End them."""
        import ray

        for worker in self._workers:
            ray.kill(worker)


class _Worker:
    async def place(self) -> WorkerPlace:
        import ray

        context = ray.get_runtime_context()
        return WorkerPlace(
            context.get_node_id(), os.getpid(), tuple(context.get_accelerator_ids().get("GPU", ()))
        )

    async def run(self) -> None:
        """Never ends by itself."""
        await asyncio.Event().wait()
