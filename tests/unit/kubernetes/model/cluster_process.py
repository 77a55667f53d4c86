# SPDX-License-Identifier: Apache-2.0
"""A process that works on a task, and its clients: each of their calls waits until the world answers it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from airflow_provider_raybatch.cluster.jobs_api.models import JobInfo, JobRequest
from tests.unit.model.stepped_loop import SteppedLoop

if TYPE_CHECKING:
    from .cluster_world import World


@dataclass
class Call:
    """A call that waits for its answer."""

    name: str
    act: Callable[[], Any]
    future: asyncio.Future[Any]

    @property
    def changes(self) -> bool:
        return self.name.partition(" ")[0] in {"create", "patch", "delete"} or self.name == "ray submit"


class Process:
    """A worker's, or a kill's.

    :ivar follows: the uid of the RayJob whose job it follows.
    :ivar seen: digest of all answers so far, which with the call that waits decide what it does next.
    """

    def __init__(self, world: World, number: int, token: str, what: Callable[..., Any]) -> None:
        self.loop = SteppedLoop()
        self.loop.now = world.kubernetes.now
        self.world, self.number, self.token = world, number, token
        self.call: Call | None = None
        self.frozen = False
        self.follows = ""
        self.seen = 0
        self.task = self.loop.start(what(self))
        self.loop.run()

    async def ask(self, name: str, act: Callable[[], Any]) -> Any:
        assert self.call is None, "two calls at once"
        self.call = Call(name, act, asyncio.get_running_loop().create_future())
        return await self.call.future

    @property
    def wakes(self) -> float:
        return min((timer.when for timer in self.loop._timers if not timer.is_cancelled), default=0.0)

    # `KubernetesClient`, and a client of the Jobs API.

    namespace = "default"

    async def create(self, manifest: Any) -> Any:
        return await self.ask(f"create {manifest['kind']}", partial(self.world.kubernetes.create, manifest))

    async def list(self, kind: str, *, labels: str = "") -> Any:
        return await self.ask(f"list {kind}", partial(self.world.kubernetes.list, kind, labels))

    async def get(self, kind: str, name: str) -> Any:
        return await self.ask(f"get {kind}", partial(self.world.kubernetes.get, name))

    async def patch(self, kind: str, name: str, change: Any) -> Any:
        return await self.ask(f"patch {kind}", partial(self.world.kubernetes.patch, name, change))

    async def delete(self, kind: str, name: str, *, uid: str | None = None) -> Any:
        return await self.ask(f"delete {kind}", partial(self.world.kubernetes.delete, name, uid))

    def now(self) -> float:
        return self.world.kubernetes.now


class Client:
    """Of the Jobs API of one RayJob's cluster."""

    address = SimpleNamespace(shown="http://head")

    def __init__(self, process: Process, uid: str) -> None:
        self.process, self.uid = process, uid

    async def version(self) -> Any:
        return SimpleNamespace(session_name="s")

    async def info(self, submission_id: str) -> JobInfo | None:
        kubernetes = self.process.world.kubernetes
        found: JobInfo | None = await self.process.ask(
            "ray info", partial(kubernetes.info, self.uid, submission_id)
        )
        return found

    async def submit(self, request: JobRequest) -> None:
        kubernetes = self.process.world.kubernetes
        await self.process.ask("ray submit", partial(kubernetes.submit, self.uid, request))
