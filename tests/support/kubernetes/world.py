# SPDX-License-Identifier: Apache-2.0
"""A STAND-IN for a whole Kubernetes with KubeRay: API server, controllers, scheduler, kubelets and nodes.

::

    with world(clock=Clock()) as kubernetes:              # heads are fake Jobs APIs; it moves by itself
        kubernetes.server.access.grant("airflow", RULES, namespace="default", token="t")
        ...                                               # kubernetes.web.url
        kubernetes.disasters.oom_kill("...-head")
        kubernetes.kuberay_down = True                    # KubeRay's controllers stand still

    kubernetes = World(clock=Clock(start=1_700_000_000))  # for unit tests: moves by step() alone, no HTTP
    api = MemoryKubernetes(kubernetes.server, between=kubernetes.step)
"""

from __future__ import annotations

import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from tests.support.kubernetes.clock import Clock
from tests.support.kubernetes.conditions import holds
from tests.support.kubernetes.disasters import Disasters
from tests.support.kubernetes.fast_heads import FastHeads
from tests.support.kubernetes.garbage import collect_all
from tests.support.kubernetes.kubelet import Kubelet
from tests.support.kubernetes.kueue import Kueue
from tests.support.kubernetes.nodes import Node, NodeGroup, Scheduler
from tests.support.kubernetes.raycluster_controller import RayClusterController
from tests.support.kubernetes.rayjob_controller import RayJobController
from tests.support.kubernetes.refusals import RefusedError
from tests.support.kubernetes.server import ApiServer
from tests.support.kubernetes.web import WebServer

_SECONDS = 0.02


class World:
    """A Kubernetes that moves a step at a time.

    :param runtime: what realises pods: fake Jobs APIs if there is none given.
    :param nodes: of the cluster; one large one without GPUs if none are given.
    :param groups: of nodes that are added while pods wait.
    :param kuberay: version of KubeRay's custom resources; empty: KubeRay is not installed.
    :param kueue: whether Kueue is installed.
    :param silence: seconds without an answer of a head after which KubeRay fails a RayJob.
    """

    web: WebServer

    def __init__(
        self, *, runtime: Any = None, nodes: list[Node] | None = None, groups: list[NodeGroup] | None = None,
        kuberay: str = "1.7.0", kueue: bool = False, clock: Clock | None = None, silence: float = 300.0,
    ) -> None:  # fmt: skip
        self.server = ApiServer(kuberay, kueue=kueue, clock=clock)
        self.store = self.server.store
        self.runtime = runtime if runtime is not None else FastHeads()
        self.kubelet = Kubelet(self.store, self.runtime)
        self.scheduler = Scheduler(self.store, nodes if nodes is not None else [Node("node-1")], groups or [])
        self.disasters = Disasters(self.store, self.kubelet, self.scheduler)
        self.kueue = Kueue(self.store)
        self._rayjobs = RayJobController(self.server, silence=silence)
        self._rayclusters = RayClusterController(self.server)
        self._has_kueue = kueue
        self.kuberay_down = False
        self._turn = threading.RLock()

    def step(self) -> None:
        """Let each component look once at everything."""
        parts = [self.scheduler.step, self.kubelet.step]
        if not self.kuberay_down:  # a pod that has ended is replaced within the step, as within a second
            again = [self._rayclusters.step, self.kubelet.end_deleted, self._rayclusters.step]
            parts = [self._rayjobs.step, self._rayclusters.step, *parts, *again]
        parts += [self._serve, self._collect]
        if self._has_kueue:
            parts.insert(0, self.kueue.step)
        with self._turn:
            for part in parts:
                with suppress(RefusedError):  # a client was first; the next step sees what it did
                    part()

    def settle(self, steps: int = 12) -> None:
        """Let everything come to rest."""
        for _ in range(steps):
            self.step()

    def _collect(self) -> None:
        collect_all(self.store)

    def _serve(self) -> None:
        """Say where the services of the heads that are ready lead."""
        found = {}
        for pod in self.store.peek("Pod"):
            labels = pod["metadata"].get("labels") or {}
            if labels.get("ray.io/node-type") != "head" or not holds(pod, "Ready"):
                continue
            address = self.runtime.dashboard(pod)
            for service in self.store.peek("Service", pod["metadata"]["namespace"]):
                selector = service["spec"].get("selector") or {}
                if address and selector.items() <= labels.items():
                    key = (pod["metadata"]["namespace"], service["metadata"]["name"])
                    ports = [port for port in service["spec"]["ports"] if port["name"] == "dashboard"]
                    for port in ports:
                        found |= {(*key, str(port["port"])): address, (*key, "dashboard"): address}
        if found != self.server.endpoints:
            with self.store.changed:
                self.server.endpoints = found
                self.store.changed.notify_all()


@contextmanager
def world(*, port: int = 0, tls: Any = None, every: float = _SECONDS, **given: Any) -> Iterator[World]:
    """A :class:`World` that moves by itself and is served over HTTP, for the length of a block.

    :param port: of the API server; 0: a free one.
    :param every: seconds between two steps.
    """
    made = World(**given)
    made.web = WebServer(made.server, port=port, tls=tls)
    ended, wrong = threading.Event(), []

    def move() -> None:
        while not ended.wait(every):
            try:
                made.step()
            except Exception:
                wrong.append(traceback.format_exc())
                made.server.faults.down = True  # so that no test waits for what can't come
                return

    thread = threading.Thread(target=move, daemon=True)
    thread.start()
    try:
        yield made
    finally:
        ended.set()
        thread.join()
        made.web.close()
        made.runtime.close()
    assert not wrong, f"the stand-in itself failed:\n{wrong[0]}"
