# SPDX-License-Identifier: Apache-2.0
"""Events that may hit a task, its processes or its cluster right before a step."""

from __future__ import annotations

from collections.abc import Callable

from .task import World

Event = Callable[[World], str | None]
"""Makes it happen; returns what becomes of the step itself: ``lost``, ``refused`` or ``late``."""


def _cluster_away(world: World) -> None:
    world.ray.down_until = world.clock.now + 1000.0
    world.may_fail = True  # all its retries come too early


def _proxy(world: World) -> None:
    world.ray.proxy_until = world.clock.now + 40.0
    world.may_fail = True  # at first contact it counts as a wrong address


EVENTS: dict[str, Event] = {
    "killed": World.kill,
    "evicted": World.evict,
    "evicted, Airflow silent": lambda world: world.evict(silently=True),
    "answer lost": lambda world: "lost",
    "refused": lambda world: "refused",
    "late": lambda world: "late",
    "cluster away": _cluster_away,
    "proxy answers": _proxy,
    "head forgets": lambda world: world.ray.forget(),
    "head forgets living drivers": lambda world: world.ray.forget(linger=True),
    "head restarts": lambda world: world.ray.keep(survive=True),
    "head restarts without its drivers": lambda world: world.ray.keep(survive=False),
    "driver killed": lambda world: world.ray.kill_drivers(),
    "job ends": lambda world: world.ray.finish(),
    "jobs deleted": lambda world: world.ray.delete(),
    "cleared": World.clear,
    "cleared, untold": lambda world: world.clear(informed=False) or world.kill(),
    "cleared like a retry": lambda world: world.clear(new_run=False),
    "marked failed": World.mark_failed,
    "marked failed, Airflow silent": lambda world: world.mark_failed(silently=True),
    "marked failed, untold": lambda world: world.mark_failed(informed=False) or world.kill(),
}
