# SPDX-License-Identifier: Apache-2.0
"""What else happens at a call of the task: to the API server, to KubeRay, to the cluster, by people."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress

from tests.support.kubernetes.conditions import holds
from tests.support.kubernetes.kinds import Manifest
from tests.support.kubernetes.refusals import RefusedError
from tests.support.kubernetes.web import WebServer
from tests.support.kubernetes.world import World

_OUTAGE = 0.4
_JUMP = 1200.0


def api_server(kubernetes: World) -> bool:
    """The API server dies with all connections, and starts again from what it has stored."""
    kubernetes.server.faults.down = True
    kubernetes.web.close()

    def start() -> None:
        time.sleep(_OUTAGE)
        before = kubernetes.web
        kubernetes.web = WebServer(kubernetes.server, port=before.port, tls=before.tls)
        kubernetes.server.faults.down = False

    thread = threading.Thread(target=start)
    thread.start()
    return True


def controller(kubernetes: World) -> bool:
    """KubeRay's operator dies, and starts a while later; it keeps nothing in memory."""
    kubernetes.kuberay_down = True

    def start() -> None:
        kubernetes.kuberay_down = False

    threading.Timer(2 * _OUTAGE, start).start()
    return True


def head(kubernetes: World) -> bool:
    """The head's container ends and is started again, without its jobs."""
    found = _head(kubernetes)
    if found is None:
        return False
    kubernetes.runtime.crash(found["metadata"]["uid"])
    until = time.monotonic() + 5.0
    while time.monotonic() < until:
        now = kubernetes.store.find("Pod", "default", found["metadata"]["name"])
        if now is None or not holds(now, "Ready"):
            return True
        time.sleep(0.02)
    return False


def preempted(kubernetes: World) -> bool:
    """The head's pod is deleted for one of a higher priority."""
    found = _head(kubernetes)
    if found is None:
        return False
    kubernetes.disasters.preempt(found["metadata"]["name"])
    return True


def rayjob(kubernetes: World) -> bool:
    """Someone deletes the RayJob."""
    return _delete(kubernetes, "RayJob")


def raycluster(kubernetes: World) -> bool:
    """Someone deletes the RayCluster."""
    return _delete(kubernetes, "RayCluster")


def evicted(kubernetes: World) -> bool:
    """Kueue takes the RayJob's quota back, and gives it again a while later."""
    found = _latest(kubernetes, "RayJob")
    if found is None:
        return False

    def suspend(value: bool) -> None:
        with suppress(RefusedError):
            name, change = found["metadata"]["name"], {"spec": {"suspend": value}}
            kubernetes.server.patch(kubernetes.server.admin, "RayJob", "default", name, change)

    suspend(True)
    threading.Timer(_OUTAGE, suspend, [False]).start()
    return True


def clock(kubernetes: World) -> bool:
    """The server's clock is set forward."""
    kubernetes.server.clock.advance(_JUMP)
    return True


DEEDS: dict[str, Callable[[World], bool]] = {
    "API server": api_server,
    "controller": controller,
    "head restarted": head,
    "head preempted": preempted,
    "RayJob deleted": rayjob,
    "RayCluster deleted": raycluster,
    "evicted by Kueue": evicted,
    "clock set forward": clock,
}
LOSES_JOB = frozenset({
    "head restarted",
    "head preempted",
    "RayJob deleted",
    "RayCluster deleted",
    "evicted by Kueue",
})
"""After these a job may have to be submitted again."""


def _head(kubernetes: World) -> Manifest | None:
    pods = kubernetes.store.all("Pod")
    heads = [pod for pod in pods if pod["metadata"]["labels"].get("ray.io/node-type") == "head"]
    living = [
        pod
        for pod in heads
        if not pod["metadata"].get("deletionTimestamp") and pod["status"].get("phase") == "Running"
    ]
    return living[-1] if living else None


def _latest(kubernetes: World, kind: str) -> Manifest | None:
    found = [one for one in kubernetes.store.all(kind) if not one["metadata"].get("deletionTimestamp")]
    return found[-1] if found else None


def _delete(kubernetes: World, kind: str) -> bool:
    found = _latest(kubernetes, kind)
    if found is None:
        return False
    name = found["metadata"]["name"]
    with suppress(RefusedError):
        kubernetes.server.delete(kubernetes.server.admin, kind, "default", name, propagation="Foreground")
    return True
