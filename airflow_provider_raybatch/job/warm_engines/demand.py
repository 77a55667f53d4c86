# SPDX-License-Identifier: Apache-2.0
"""Which idle engines end so that pending requests of the cluster find room.

An idle engine is a cache: it ends when something waits that its node could hold without idle engines. Where
Ray places what waits is not repeated here. Each engine decides for itself, and all see the same state.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, NamedTuple

from airflow_provider_raybatch.job.warm_engines.registry import WarmEngineRegistry, WarmEngineState

_LABEL_IN = 1
"""``LABEL_OPERATOR_IN`` of Ray's autoscaler.proto."""


class Bundle(NamedTuple):
    """What must be free on one node, and labels that the node must have."""

    amounts: Counter[str]
    labels: Mapping[str, frozenset[str]] = {}


@dataclass(frozen=True)
class PendingDemand:
    """Bundles that are placed all at once or not at all; `count` is how many wait for the same."""

    bundles: Sequence[Bundle]
    count: int = 1


@dataclass
class Node:
    """What is free on a node, and its idle engines by name, the longest idle one first."""

    free: Counter[str]
    labels: Mapping[str, str] = field(default_factory=dict)
    idle: dict[str, Counter[str]] = field(default_factory=dict)

    @property
    def room(self) -> Counter[str]:
        """What would be free without the idle engines."""
        return sum(self.idle.values(), self.free)

    def holds(self, bundle: Bundle, room: Counter[str]) -> bool:
        """Whether the bundle fits into this room on the node."""
        return bundle.amounts <= room and all(
            self.labels.get(name) in values for name, values in bundle.labels.items()
        )

    def could_serve(self, bundle: Bundle) -> bool:
        """Whether the end of idle engines gives the bundle what it asks for."""
        return any(held & bundle.amounts for held in self.idle.values()) and self.holds(bundle, self.room)

    def take(self, bundle: Bundle) -> list[str]:
        """Let the bundle have its amounts, and return the names of the engines that end for it."""
        self.free.subtract(bundle.amounts)
        ended = []
        for name, held in list(self.idle.items()):
            if any(self.free[resource] < 0 for resource in held):
                self.free.update(self.idle.pop(name))
                ended.append(name)
        return ended


def units(amounts: Mapping[str, float]) -> Counter[str]:
    """Ray's resources by name, in the ten-thousandths in which Ray counts them."""
    return Counter({name: round(amount * 10_000) for name, amount in amounts.items()})


def should_evict(name: str, registry: WarmEngineRegistry) -> bool:
    """Whether this engine must end so that what waits on the cluster finds room."""
    requests, nodes = pending()
    return bool(requests) and name in in_the_way(requests, nodes, registry.states())


def in_the_way(
    requests: Iterable[PendingDemand],
    nodes: Mapping[str, Node],
    engines: Mapping[str, WarmEngineState | None],
) -> set[str]:
    """Names of the idle engines that end for these requests, the longest idle ones first.

    An engine that is ending counts as free. A request that would find no room without all idle engines ends
    none. One that waits though it seems to fit ends one: halves of two GPUs, say, are no GPU for Ray.

    :param nodes: by id. Changed here.
    """
    known = {name: state for name, state in engines.items() if state is not None and state.node in nodes}
    ending = [state for state in known.values() if state.is_ending]
    for state in ending:
        nodes[state.node].free.update(units(state.amounts))
    idle = sorted((-state.since, name) for name, state in known.items() if state.is_free)
    for _, name in idle:
        nodes[known[name].node].idle[name] = units(known[name].amounts)
    by_age = [nodes[node] for node in dict.fromkeys(known[name].node for _, name in idle)]
    ended: set[str] = set()
    first: str | None = None
    for request in requests:
        for _ in range(request.count):
            serving = [node for node in by_age if any(map(node.could_serve, request.bundles))]
            if not serving or not _could_be_placed(request, nodes.values()):
                break
            first = first or next(iter(serving[0].idle))
            for bundle in request.bundles:
                fits = (node for node in nodes.values() if node.holds(bundle, node.free))
                could = (node for node in by_age if node.could_serve(bundle))
                place = next(chain(fits, could), None)
                ended.update(place.take(bundle) if place is not None else ())
    return ended if ended or ending or first is None else {first}


def _could_be_placed(request: PendingDemand, nodes: Collection[Node]) -> bool:
    """Whether each bundle would fit on a node, and all of them on the cluster, without the idle engines."""
    wanted = sum((bundle.amounts for bundle in request.bundles), Counter[str]())
    return wanted <= sum((node.room for node in nodes), Counter[str]()) and all(
        any(node.holds(bundle, node.room) for node in nodes) for bundle in request.bundles
    )


def pending() -> tuple[list[PendingDemand], dict[str, Node]]:
    """What waits on this cluster, and its nodes by id.

    Ray has no public call for it; its autoscaler asks the same. Nothing where Ray does not tell: warm engines
    then end at their time.
    """
    try:
        from ray._private.worker import global_worker
        from ray.autoscaler.v2.sdk import get_cluster_resource_state

        state = get_cluster_resource_state(global_worker.gcs_client)
        alone = state.pending_resource_requests
        requests = [PendingDemand([_bundle(one.request)], max(1, one.count)) for one in alone]
        requests += [_group(group.requests) for group in state.pending_gang_resource_requests]
        nodes = {
            node.node_id.hex(): Node(units(node.available_resources), dict(node.labels))
            for node in state.node_states
        }
    except Exception:  # of Ray's private API
        return [], {}
    return requests, nodes


def _group(asked: Sequence[Any]) -> PendingDemand:
    """A placement group. STRICT_PACK is an affinity in Ray's state: all bundles go on one node."""
    bundles = [_bundle(one) for one in asked]
    if any(rule.HasField("affinity") for one in asked for rule in one.placement_constraints):
        labels = {name: values for bundle in bundles for name, values in bundle.labels.items()}
        bundles = [Bundle(sum((bundle.amounts for bundle in bundles), Counter[str]()), labels)]
    return PendingDemand(bundles)


def _bundle(asked: Any) -> Bundle:
    """Its labels are those that Ray tries first, where they name values that are wanted."""
    labels = {
        one.label_key: frozenset(one.label_values)
        for selector in list(asked.label_selectors)[:1]
        for one in selector.label_constraints
        if one.operator == _LABEL_IN
    }
    return Bundle(units(asked.resources_bundle), labels)
