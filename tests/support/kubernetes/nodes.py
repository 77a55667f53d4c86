# SPDX-License-Identifier: Apache-2.0
"""Nodes of the stand-in for a Kubernetes: where pods find place, why not, and nodes that come and go."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from tests.support.kubernetes.conditions import set_condition
from tests.support.kubernetes.events import record
from tests.support.kubernetes.kinds import Manifest
from tests.support.kubernetes.quantities import amount, requests_of
from tests.support.kubernetes.store import Store


@dataclass
class Node:
    """A node, or the pattern of nodes that a node group can add.

    :param capacity: quantities, as in ``{"cpu": "8", "memory": "64Gi", "nvidia.com/gpu": "1"}``.
    :param taints: keys that a pod has to tolerate.
    """

    name: str
    capacity: Mapping[str, str] = field(default_factory=lambda: {"cpu": "64", "memory": "512Gi"})
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[str, ...] = ()


@dataclass
class NodeGroup:
    """Nodes that a cluster's autoscaler adds while pods wait.

    :param seconds: by the server's clock, until an added node is there.
    """

    pattern: Node
    most: int = 4
    seconds: float = 0.0
    made: int = 0
    coming: dict[str, float] = field(default_factory=dict)


class Scheduler:
    """Gives pods to nodes, and lets node groups grow.

    :param claims: names of the volume claims that are there; ``None``: every one is.
    """

    def __init__(self, store: Store, nodes: list[Node], groups: list[NodeGroup]) -> None:
        self._store = store
        self.nodes = nodes
        self.groups = groups
        self.claims: set[str] | None = None

    def step(self) -> None:
        """Look once at each pod that has no node."""
        self._let_nodes_come()
        for pod in self._store.all("Pod"):
            if pod["spec"].get("nodeName") or pod["metadata"].get("deletionTimestamp"):
                continue
            if (why := self._place(pod)) is not None:
                self._leave_pending(pod, why)
                self._grow_for(pod)

    def _place(self, pod: Manifest) -> str | None:
        """Give a pod to a node; the reason why there is none."""
        for volume in pod["spec"].get("volumes") or ():
            claim = (volume.get("persistentVolumeClaim") or {}).get("claimName")
            if claim and self.claims is not None and claim not in self.claims:
                return f'persistentvolumeclaim "{claim}" not found'
        reasons = Counter[str]()
        for node in self.nodes:
            if not (wrong := self._against(pod, node)):
                pod["spec"]["nodeName"] = node.name
                now = self._store.clock.timestamp()
                set_condition(pod, "PodScheduled", True, now=now)
                self._store.replace(pod)
                where = f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"
                text = f"Successfully assigned {where} to {node.name}"
                record(self._store, pod, "Scheduled", text, source="default-scheduler")
                return None
            reasons.update(wrong)
        return ", ".join(f"{count} {reason}" for reason, count in sorted(reasons.items()))

    def _against(self, pod: Manifest, node: Node) -> list[str]:
        tolerated = [each.get("key") for each in pod["spec"].get("tolerations") or ()]
        for taint in node.taints:
            if taint not in tolerated and None not in tolerated:
                return [f"node(s) had untolerated taint {{{taint}: }}"]
        if not (pod["spec"].get("nodeSelector") or {}).items() <= dict(node.labels).items():
            return ["node(s) didn't match Pod's node affinity/selector"]
        used = Counter[str]()
        for other in self._store.peek("Pod"):
            if other["spec"].get("nodeName") == node.name and other["status"].get("phase") != "Failed":
                used.update(requests_of(other))
        free = {name: amount(quantity) - used[name] for name, quantity in node.capacity.items()}
        return [
            f"Insufficient {name}"
            for name, wanted in requests_of(pod).items()
            if wanted > free.get(name, 0.0)
        ]

    def _leave_pending(self, pod: Manifest, why: str) -> None:
        count = len(self.nodes)
        message = why if why.startswith("persistentvolumeclaim") else f"0/{count} nodes are available: {why}."
        now = self._store.clock.timestamp()
        before = str(pod["status"])
        set_condition(pod, "PodScheduled", False, "Unschedulable", message, now=now)
        if str(pod["status"]) != before:
            self._store.replace(pod)
            record(self._store, pod, "FailedScheduling", message, source="default-scheduler", warning=True)

    def _grow_for(self, pod: Manifest) -> None:
        """Add a node that a pending pod fits on, or say that none would help."""
        wrong: list[str] = []
        for group in self.groups:
            against = self._against(
                pod, Node("", group.pattern.capacity, group.pattern.labels, group.pattern.taints)
            )
            if against:
                wrong += [f"1 {reason}" for reason in against]
            elif group.coming:
                return
            elif group.made >= group.most:
                wrong.append("1 max node group size reached")
            else:
                group.made += 1
                name = f"{group.pattern.name}-{group.made}"
                group.coming[name] = self._store.clock.now() + group.seconds
                sizes = f"{group.pattern.name} {group.made - 1}->{group.made} (max: {group.most})"
                text = f"pod triggered scale-up: [{{{sizes}}}]"
                record(self._store, pod, "TriggeredScaleUp", text, source="cluster-autoscaler")
                return
        if self.groups:
            text = f"pod didn't trigger scale-up: {', '.join(sorted(set(wrong)))}"
            record(self._store, pod, "NotTriggerScaleUp", text, source="cluster-autoscaler")

    def _let_nodes_come(self) -> None:
        for group in self.groups:
            for name, due in list(group.coming.items()):
                if self._store.clock.now() >= due:
                    del group.coming[name]
                    self.nodes.append(replace(group.pattern, name=name))
