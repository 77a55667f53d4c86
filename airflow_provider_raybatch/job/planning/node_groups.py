# SPDX-License-Identifier: Apache-2.0
"""How many replicas fit on nodes: on those that run, and on those that an autoscaler may add. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from airflow_provider_raybatch.contract.text import count_of

ACCELERATOR = "accelerator_type:"
UNLIMITED = 1_000_000
"""Nodes, if the autoscaler has no limit."""
_MOST_SHOWN = 6

Resources = dict[str, float]


def request(cpus: float, gpus: float, accelerator_type: str | None) -> Resources:
    """The resources of one replica, as Ray names them."""
    asked = {"CPU": cpus}
    if gpus:
        asked["GPU"] = float(gpus)
    if accelerator_type:
        asked[ACCELERATOR + accelerator_type] = 0.001
    return asked


def copies(node: Resources, asked: Resources) -> int:
    """How many such requests fit on a node."""
    return min(times(node.get(name, 0.0), amount, name) for name, amount in asked.items())


def times(room: float, amount: float, name: str) -> int:
    """How often an amount of a resource fits into what a node, or a cluster, has of it.

    :param name: of the resource. Ray takes a share of a GPU from one GPU, so 0.6 fits into two GPUs twice.
    """
    # In doubles, 5/6 would fit into 5 only five times, and 0.1 into 1 nine times.
    if name != "GPU" or amount >= 1:
        return int((room + 1e-9) // amount)
    whole = int(room + 1e-9)
    return whole * int((1 + 1e-9) // amount) + int((room - whole + 1e-9) // amount)


def gpus_in_words(gpus: float) -> str:
    """``2 GPUs``, or ``0.5 GPU``."""
    return count_of(int(gpus), "GPU") if gpus == int(gpus) else f"{gpus:g} GPU"


def accelerator_types(node: Resources) -> list[str | None]:
    """The types of a node's accelerators; ``None`` stands for a type without a name.

    Of names like "A100" and "A100-40G", which a node may have both, the longer one counts.
    """
    names = [name.removeprefix(ACCELERATOR) for name in node if name.startswith(ACCELERATOR)]
    longest = [one for one in names if not any(other.startswith(f"{one}-") for other in names)]
    return [*longest] or [None]


def replicas_on(nodes: Collection[tuple[Resources, int]], asked: Resources, spans_nodes: bool) -> int:
    """How many replicas fit on nodes.

    :param nodes: a node's resources, and how many such nodes there are.
    :param spans_nodes: whether each GPU of a replica is a bundle of its own, on any node; the replica's CPUs
        are in the bundle of its first GPU.
    """
    if not spans_nodes:
        return sum(count * copies(node, asked) for node, count in nodes)
    first, other = bundles(asked)[:2]
    bundles_held = sum(count * copies(node, other) for node, count in nodes)
    first_bundles_held = sum(count * copies(node, first) for node, count in nodes)
    return min(first_bundles_held, bundles_held // int(asked["GPU"]))


def bundles(asked: Resources) -> list[Resources]:
    """The bundles of a replica whose GPUs may lie on several nodes: one per GPU."""
    other = {name: 1.0 if name == "GPU" else amount for name, amount in asked.items() if name != "CPU"}
    return [{**other, "CPU": asked["CPU"]}, *[other] * (int(asked["GPU"]) - 1)]


def shown(resources: Resources) -> str:
    """Amounts with their names."""
    names = [
        f"{amount:g} {name}" if not name.startswith(ACCELERATOR) else f"an {name.removeprefix(ACCELERATOR)}"
        for name, amount in resources.items()
        if not name.startswith(ACCELERATOR) or amount
    ]
    return " and ".join(names) or "nothing"


@dataclass(frozen=True)
class NodeGroup:
    """Equal nodes that an autoscaler adds and removes.

    :param node: the resources of one node.
    :param max_nodes: at most so many at once.
    """

    name: str
    node: Resources
    max_nodes: int

    def node_for(self, asked: Resources) -> Resources:
        """One node; with the type of accelerator that is asked for if the group names none.

        Few groups name it: Ray finds the type when the node starts.
        """
        if not self.node.get("GPU") or any(name.startswith(ACCELERATOR) for name in self.node):
            return self.node
        return {**self.node, **{name: 1.0 for name in asked if name.startswith(ACCELERATOR)}}

    def sentence(self, asked: Resources) -> str:
        """Name, size and shape, as far as a request is concerned."""
        node = {name: self.node.get(name, 0.0) for name in asked if not name.startswith(ACCELERATOR)}
        node |= {name: amount for name, amount in self.node.items() if name.startswith(ACCELERATOR)}
        most = "any number of" if self.max_nodes >= UNLIMITED else f"at most {self.max_nodes}"
        return f"{self.name} ({most} {'node' if self.max_nodes == 1 else 'nodes'} of {shown(node)})"


@dataclass(frozen=True)
class AutoscalerLimits:
    """What an autoscaler may make of a cluster.

    :param max_nodes: nodes of all groups together.
    :param max_resources: of the whole cluster, by name; a resource without an entry has no limit.
    """

    groups: tuple[NodeGroup, ...]
    max_nodes: int = UNLIMITED
    max_resources: Resources = field(default_factory=dict)

    def replicas(self, asked: Resources, spans_nodes: bool, others: Iterable[Resources] = ()) -> int:
        """How many replicas fit when the autoscaler has added all it may.

        :param others: nodes that belong to no group, such as the head.
        """
        unit = bundles(asked)[-1] if spans_nodes else asked
        fitting = [(copies(group.node_for(asked), unit), group) for group in self.groups]
        nodes = [(node, 1) for node in others]
        left = self.max_nodes
        for fits, group in sorted(fitting, key=lambda pair: -pair[0]):
            count = min(group.max_nodes, left) if fits else 0
            left -= count
            nodes.append((group.node_for(asked), count))
        most = self.max_resources
        bounds = (times(most[name], asked[name], name) for name in asked if name in most)
        return int(min(replicas_on(nodes, asked, spans_nodes), *bounds, UNLIMITED))

    def names(self, resource: str) -> bool:
        """Whether a group names this resource, such as ``GPU``."""
        return any(group.node.get(resource) for group in self.groups)

    def sentence(self, asked: Resources) -> str:
        """The groups and the limits, as far as a request is concerned."""
        groups = [group.sentence(asked) for group in self.groups]
        if len(groups) > _MOST_SHOWN:
            groups[_MOST_SHOWN:] = [f"{len(groups) - _MOST_SHOWN} more"]
        bounds = {name: amount for name, amount in self.max_resources.items() if name in asked}
        most = sum(group.max_nodes for group in self.groups)
        limits = [count_of(self.max_nodes, "node")] if self.max_nodes < min(most, UNLIMITED) else []
        limits += [shown(bounds)] if bounds else []
        text = ", ".join(groups)
        return f"{text}, in all at most {' and '.join(limits)}" if limits else text
