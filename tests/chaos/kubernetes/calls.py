# SPDX-License-Identifier: Apache-2.0
"""Every call of a process to Kubernetes or the Jobs API: recorded, and struck where a plan says so.

All of them go through ``httpx.AsyncClient.send``, which returns once the server has answered with headers, so
that it has acted. A strike comes *before* a call is sent, or *after* the act and before the code sees the
answer.
"""

from __future__ import annotations

import os
import re
import signal
from collections import Counter
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Literal

import httpx

When = Literal["before", "after"]

_NAMES = (
    (re.compile(r"^.*/services/[^/]+/proxy"), "Jobs API "),
    (re.compile(r"^/apis?/(?:ray\.io/|kueue[^/]*/)?v\w+/namespaces/[^/]+/"), ""),
    (re.compile(r"^(rayjobs|rayclusters|secrets|pods|events|workloads)/.+"), r"\1/NAME"),
    (re.compile(r"/api/jobs/[\w-]+"), "/api/jobs/ID"),
    (re.compile(r"/api/packages/.*/_ray_pkg[^/]*|/api/packages/.+"), "/api/packages/ID"),
)


@dataclass(frozen=True)
class Point:
    """A call of a process.

    :param role: of the process: `task`, `trigger`, `resumed`, or `stop` for what follows SIGTERM; in a DAG
        run after the task's id, as in ``generate trigger``.
    :param call: method and path without names.
    :param nth: of these calls of the role, from 1.
    """

    role: str
    call: str
    nth: int

    def __str__(self) -> str:
        return f"{self.role}: {self.call} {self.nth}"


@dataclass(frozen=True)
class Strike:
    """What happens at a point.

    :param deed: ``kill`` (SIGKILL), ``late`` (its successor comes after the cluster's deadline), ``orphan``
        (there is no successor), ``lost`` (the answer is lost), ``fail`` and ``clear`` (a user's, by SIGTERM),
        or one of :mod:`.deeds`, which the harness does while the process waits.
    """

    point: Point
    when: When
    deed: str


def call_of(method: str, path: str) -> str:
    for pattern, name in _NAMES:
        path = pattern.sub(name, path)
    return f"{method} {path}"


class Calls:
    """Watches the calls of this process.

    :param tell: to the harness; each call is told, and a deed of the harness is waited for.
    """

    def __init__(self, role: str, strikes: list[Strike], tell: Connection) -> None:
        self.role, self._strikes, self._tell = role, strikes, tell
        self._counts: Counter[str] = Counter()

    def watch(self) -> None:
        send = httpx.AsyncClient.send

        async def struck(client: httpx.AsyncClient, request: httpx.Request, **options: Any) -> Any:
            called = call_of(request.method, request.url.path)
            key = f"{self.role} {called}"
            self._counts[key] += 1
            point = Point(self.role, called, self._counts[key])
            self._tell.send(("call", point))
            self._strike(point, "before")
            answer = await send(client, request, **options)
            self._strike(point, "after")
            return answer

        httpx.AsyncClient.send = struck  # type: ignore[method-assign]

    def _strike(self, point: Point, when: When) -> None:
        for strike in self._strikes:
            if strike.point != point or strike.when != when:
                continue
            self._tell.send(("struck", strike))
            if strike.deed == "lost":
                raise httpx.RemoteProtocolError("Server disconnected without sending a response.")
            if strike.deed != "kill":
                self._tell.recv()  # until it is done; only this one loop stands still
            if strike.deed in {"kill", "orphan", "late"}:
                os.kill(os.getpid(), signal.SIGKILL)
            if strike.deed in {"fail", "clear"}:
                os.kill(os.getpid(), signal.SIGTERM)
