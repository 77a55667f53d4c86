# SPDX-License-Identifier: Apache-2.0
"""What happens to pods and nodes of the stand-in for a Kubernetes, worded as Kubernetes words it."""

from __future__ import annotations

from tests.support.kubernetes.conditions import set_condition
from tests.support.kubernetes.events import record
from tests.support.kubernetes.kinds import Manifest
from tests.support.kubernetes.kubelet import Kubelet
from tests.support.kubernetes.nodes import Scheduler
from tests.support.kubernetes.store import Store, key_of

DISRUPTED = "DisruptionTarget"


class Disasters:
    """Ends pods and nodes in the ways that users meet.

    :param pod: in each method the name of a pod; it must be there.
    """

    def __init__(self, store: Store, kubelet: Kubelet, scheduler: Scheduler) -> None:
        self._store = store
        self._kubelet = kubelet
        self._scheduler = scheduler

    def oom_kill(self, pod: str, namespace: str = "default") -> None:
        """The kernel ends the container: it has exceeded its limit of memory."""
        self._kubelet.fail(self._find(pod, namespace), "OOMKilled", "")

    def crash(self, pod: str, namespace: str = "default", *, exit_code: int = 1) -> None:
        """The container's process ends by itself."""
        self._kubelet.fail(self._find(pod, namespace), "Error", "", exit_code=exit_code)

    def evict(self, pod: str, namespace: str = "default") -> None:
        """The kubelet ends the pod, because its node is short of memory."""
        text = "The node was low on resource: memory. Threshold quantity: 100Mi, available: 80Mi."
        found = self._disrupted(pod, namespace, "TerminationByKubelet", text)
        record(self._store, found, "Evicted", text, source="kubelet", warning=True)
        self._kubelet.fail(found, "Error", text, phase_reason="Evicted")

    def preempt(self, pod: str, namespace: str = "default") -> None:
        """The scheduler deletes the pod for one of a higher priority."""
        text = "default-scheduler: preempting to accommodate a higher priority pod"
        found = self._disrupted(pod, namespace, "PreemptionByScheduler", text)
        record(self._store, found, "Preempted", "Preempted by pod 1234 on node n", source="default-scheduler")
        self._store.delete(key_of(found))

    def take_back(self, node: str) -> None:
        """The cloud takes a spot node back: its kubelet ends the pods in time, then the node is gone."""
        text = "Pod was terminated in response to imminent node shutdown."
        for found in self._on(node):
            name, namespace = found["metadata"]["name"], found["metadata"]["namespace"]
            disrupted = self._disrupted(name, namespace, "TerminationByKubelet", text)
            self._kubelet.fail(disrupted, "Error", text, phase_reason="Terminated")
        self._remove(node)

    def lose(self, node: str) -> None:
        """The node is gone without a word: its pods end, and Kubernetes' garbage collector fails them."""
        text = "PodGC: node no longer exists"
        for found in self._on(node):
            name, namespace = found["metadata"]["name"], found["metadata"]["namespace"]
            disrupted = self._disrupted(name, namespace, "DeletionByPodGC", text)
            self._kubelet.fail(disrupted, "Error", text, phase_reason="NodeLost")
        self._remove(node)

    def _find(self, pod: str, namespace: str) -> Manifest:
        found = self._store.find("Pod", namespace, pod)
        assert found is not None, f"there is no pod {pod}"
        return found

    def _disrupted(self, pod: str, namespace: str, reason: str, message: str) -> Manifest:
        found = self._find(pod, namespace)
        set_condition(found, DISRUPTED, True, reason, message, now=self._store.clock.timestamp())
        return self._store.replace(found)

    def _on(self, node: str) -> list[Manifest]:
        return [pod for pod in self._store.all("Pod") if pod["spec"].get("nodeName") == node]

    def _remove(self, node: str) -> None:
        nodes = self._scheduler.nodes
        nodes[:] = [each for each in nodes if each.name != node]
