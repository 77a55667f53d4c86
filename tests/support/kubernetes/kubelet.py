# SPDX-License-Identifier: Apache-2.0
"""What kubelets do in the stand-in for a Kubernetes: start containers, say how they are, end them.

How a container is realised is up to a :class:`Runtime`: as nothing but a fake Jobs API, or as Ray processes.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from tests.support.kubernetes.conditions import condition, set_condition
from tests.support.kubernetes.events import record
from tests.support.kubernetes.kinds import Manifest
from tests.support.kubernetes.store import Store, key_of


@dataclass(frozen=True)
class Running:
    """How a started container is.

    :param ready: whether its probe succeeds.
    :param exit_code: once it has ended.
    """

    ready: bool
    exit_code: int | None = None


class Runtime(Protocol):
    """Runs what a pod stands for."""

    def start(self, pod: Manifest, env: Mapping[str, str]) -> None:
        """Start a pod's containers; returns at once."""

    def look(self, pod: Manifest) -> Running:
        """How a started pod is."""

    def stop(self, pod: Manifest, *, killed: bool = False) -> bool:
        """End a pod, which may not be there, with what it started; whether that is gone.

        :param killed: at once, without SIGTERM.
        """


class Kubelet:
    """The kubelets of all nodes.

    :ivar bad_images: what the registry says of an image that can't be pulled, by image.
    :ivar refusals: reason and message with which a node refuses each pod, by node.
    """

    def __init__(self, store: Store, runtime: Runtime) -> None:
        self._store = store
        self._runtime = runtime
        self.bad_images: dict[str, str] = {}
        self.refusals: dict[str, tuple[str, str]] = {}
        self._started: set[str] = set()

    def step(self) -> None:
        """Look once at each pod on a node."""
        self.end_deleted()
        for pod in self._store.all("Pod"):
            if not pod["spec"].get("nodeName") or pod["metadata"].get("deletionTimestamp"):
                continue
            uid, phase = pod["metadata"]["uid"], pod["status"].get("phase")
            if phase in {"Failed", "Succeeded"}:
                continue
            elif (refusal := self.refusals.get(pod["spec"]["nodeName"])) is not None:
                reason, message = refusal
                record(self._store, pod, reason, message, source="kubelet", warning=True)
                self.fail(pod, "", message, phase_reason=reason)
            elif uid in self._started:
                self._watch(pod)
            elif (waiting := self._hindrance(pod)) is not None:
                self._hold(pod, *waiting)
            else:
                self._start(pod)
        known = {pod["metadata"]["uid"] for pod in self._store.peek("Pod")}
        self._started &= known

    def end_deleted(self) -> None:
        """End the pods on nodes that were deleted."""
        for pod in self._store.all("Pod"):
            if pod["spec"].get("nodeName") and pod["metadata"].get("deletionTimestamp"):
                self._end(pod)

    def fail(
        self, pod: Manifest, reason: str, message: str, *, exit_code: int = 137, phase_reason: str = ""
    ) -> None:
        """Let a pod fail at once, as by the kernel, or by a node that is going.

        :param reason: of the container's end: OOMKilled, Error, ...
        :param phase_reason: of the pod's, where the kubelet or the system ended it: Evicted, ...
        """
        self._runtime.stop(pod, killed=True)
        status = pod["status"]
        status["phase"] = "Failed"
        if phase_reason:
            status |= {"reason": phase_reason, "message": message}
        if pod["metadata"]["uid"] in self._started:
            self._tell_ended(pod, exit_code, reason, message if not phase_reason else "")
        set_condition(pod, "Ready", False, "PodFailed", now=self._now())
        self._store.replace(pod)
        self._started.discard(pod["metadata"]["uid"])

    def _end(self, pod: Manifest) -> None:
        if not self._runtime.stop(pod):
            return
        record(self._store, pod, "Killing", f"Stopping container {_main(pod)['name']}", source="kubelet")
        current = self._store.find(*key_of(pod))
        if current is not None and not current["metadata"].get("finalizers"):
            self._store.remove(key_of(pod))

    def _hindrance(self, pod: Manifest) -> tuple[str, str] | None:
        """Why a pod's containers can't start: the waiting reason and its message."""
        for container in pod["spec"]["containers"]:
            image = container.get("image", "")
            if image in self.bad_images:
                text = f'Failed to pull image "{image}": {self.bad_images[image]}'
                record(self._store, pod, "Failed", text, source="kubelet", warning=True)
                before = [each["state"] for each in pod["status"].get("containerStatuses", ())]
                if any("ErrImagePull" in str(state) or "BackOff" in str(state) for state in before):
                    text = f'Back-off pulling image "{image}"'
                    record(self._store, pod, "BackOff", text, source="kubelet")
                    return "ImagePullBackOff", f"{text}: {self.bad_images[image]}"
                return "ErrImagePull", text
        try:
            _environment(self._store, pod)
        except LookupError as error:
            text = f"Error: {error.args[0]}"
            record(self._store, pod, "Failed", text, source="kubelet", warning=True)
            return "CreateContainerConfigError", str(error.args[0])
        return None

    def _hold(self, pod: Manifest, reason: str, message: str) -> None:
        before = str(pod["status"])
        state = {"waiting": {"reason": reason, "message": message}}
        pod["status"] |= {"phase": "Pending", "containerStatuses": _statuses(pod, state, ready=False)}
        self._tell_ready(pod, False)
        if str(pod["status"]) != before:
            self._store.replace(pod)

    def _start(self, pod: Manifest) -> None:
        self._runtime.start(pod, _environment(self._store, pod))
        self._started.add(pod["metadata"]["uid"])
        state = {"running": {"startedAt": self._now()}}
        pod["status"] |= {
            "phase": "Running",
            "podIP": "127.0.0.1",
            "hostIP": "127.0.0.1",
            "startTime": self._now(),
            "containerStatuses": _statuses(pod, state, ready=False),
        }
        self._tell_ready(pod, False)
        self._store.replace(pod)
        for container in pod["spec"]["containers"]:
            record(self._store, pod, "Started", f"Started container {container['name']}", source="kubelet")

    def _watch(self, pod: Manifest) -> None:
        running = self._runtime.look(pod)
        if running.exit_code is not None:
            self._runtime.stop(pod)
            self._started.discard(pod["metadata"]["uid"])
            restarts = pod["spec"].get("restartPolicy", "Always") == "Always"
            self._tell_ended(pod, running.exit_code, "Error" if running.exit_code else "Completed", "")
            set_condition(
                pod, "Ready", False, "ContainersNotReady" if restarts else "PodFailed", now=self._now()
            )
            if not restarts:
                pod["status"]["phase"] = "Failed" if running.exit_code else "Succeeded"
            self._store.replace(pod)
            return
        is_ready = (condition(pod, "Ready") or {}).get("status") == "True"
        if running.ready != is_ready:
            state = {"running": {"startedAt": pod["status"]["startTime"]}}
            pod["status"]["containerStatuses"] = _statuses(pod, state, ready=running.ready)
            self._tell_ready(pod, running.ready)
            self._store.replace(pod)

    def _tell_ended(self, pod: Manifest, exit_code: int, reason: str, message: str) -> None:
        ended = {
            "exitCode": exit_code,
            "reason": reason,
            "startedAt": pod["status"].get("startTime", self._now()),
            "finishedAt": self._now(),
            **({"message": message} if message else {}),
        }
        pod["status"]["containerStatuses"] = _statuses(pod, {"terminated": ended}, ready=False)

    def _tell_ready(self, pod: Manifest, ready: bool) -> None:
        names = " ".join(container["name"] for container in pod["spec"]["containers"])
        why = () if ready else ("ContainersNotReady", f"containers with unready status: [{names}]")
        for name in ("ContainersReady", "Ready"):
            set_condition(pod, name, ready, *why, now=self._now())
        set_condition(pod, "Initialized", True, now=self._now())

    def _now(self) -> str:
        return self._store.clock.timestamp()


def _main(pod: Manifest) -> Manifest:
    container: Manifest = pod["spec"]["containers"][0]
    return container


def _statuses(pod: Manifest, state: Manifest, *, ready: bool) -> list[Manifest]:
    """Statuses of a pod's containers, which are all in one state."""
    before = {each["name"]: each for each in pod["status"].get("containerStatuses", ())}
    made = []
    for container in pod["spec"]["containers"]:
        last = before.get(container["name"], {})
        restarted = "running" in state and "terminated" in last.get("state", {})
        status = {
            "name": container["name"],
            "image": container.get("image", ""),
            "ready": ready,
            "started": "running" in state,
            "restartCount": last.get("restartCount", 0) + restarted,
            "state": state,
        }
        if restarted or last.get("lastState"):
            status["lastState"] = last["state"] if restarted else last["lastState"]
        made.append(status)
    return made


def _environment(store: Store, pod: Manifest) -> dict[str, str]:
    """The environment of a pod's first container; LookupError where a Secret is missing."""
    found = {"RAY_CLOUD_INSTANCE_ID": pod["metadata"]["name"]}
    for variable in _main(pod).get("env") or ():
        reference = (variable.get("valueFrom") or {}).get("secretKeyRef")
        if reference is None:
            found[variable["name"]] = str(variable.get("value", ""))
            continue
        namespace, name = pod["metadata"]["namespace"], reference["name"]
        secret = store.find("Secret", namespace, name)
        if secret is None:
            raise LookupError(f'secret "{name}" not found')
        if reference["key"] not in secret.get("data", {}):
            raise LookupError(f"couldn't find key {reference['key']} in Secret {namespace}/{name}")
        found[variable["name"]] = base64.b64decode(secret["data"][reference["key"]]).decode()
    return found
