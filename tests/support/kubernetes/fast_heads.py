# SPDX-License-Identifier: Apache-2.0
"""Pods without processes, for the stand-in for a Kubernetes: heads are fake Jobs APIs, workers nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

from tests.support.fake_ray import FakeRay, Script, committing, serving
from tests.support.kubernetes.kinds import Manifest
from tests.support.kubernetes.kubelet import Running

Jobs = Callable[[FakeRay, dict[str, Any]], Script]


class FastHeads:
    """A runtime of pods without processes.

    :param script: what the jobs of each head do.
    :ivar heads: the fake Jobs APIs so far by the pod's uid, ended ones included, in their order.
    :ivar slow: names of groups whose pods start, and don't get ready.
    :ivar broken: exit codes of images whose containers end at once.
    """

    def __init__(self, script: Jobs = committing) -> None:
        self.script = script
        self.heads: dict[str, FakeRay] = {}
        self.slow: set[str] = set()
        self.broken: dict[str, int] = {}
        self._running: dict[str, ExitStack] = {}

    def start(self, pod: Manifest, env: Mapping[str, str]) -> None:
        stack = self._running[pod["metadata"]["uid"]] = ExitStack()
        if pod["metadata"]["labels"].get("ray.io/node-type") == "head":
            ray = FakeRay(env.get("RAY_AUTH_TOKEN"))
            ray.script = self.script
            ray.session_name = f"session_{pod['metadata']['uid']}"
            self.heads[pod["metadata"]["uid"]] = stack.enter_context(serving(ray))

    def look(self, pod: Manifest) -> Running:
        group = pod["metadata"]["labels"].get("ray.io/group")
        image = pod["spec"]["containers"][0].get("image", "")
        return Running(ready=group not in self.slow, exit_code=self.broken.get(image))

    def stop(self, pod: Manifest, *, killed: bool = False) -> bool:
        if (stack := self._running.pop(pod["metadata"]["uid"], None)) is not None:
            stack.close()
        return True

    def dashboard(self, pod: Manifest) -> str | None:
        """Where a head's Jobs API listens."""
        ray = self.heads.get(pod["metadata"]["uid"])
        return ray.url.removeprefix("http://") if ray is not None else None

    def close(self) -> None:
        for stack in self._running.values():
            stack.close()
        self._running.clear()
