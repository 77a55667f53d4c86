# SPDX-License-Identifier: Apache-2.0
"""Which idle engines end so that pending requests of the cluster find room.

Each engine decides for itself, and all see the same state of the cluster. So one request ends the engines
that occupy its node, and no others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_provider_raybatch.job.warm_engines.registry import WarmEngineRegistry

Amounts = Mapping[str, float]
"""Ray's resources by name."""

_LEAST = 1e-6


@dataclass(frozen=True)
class Bundle:
    """What must be free on one node.

    :param labels: that the node must have, by name.
    """

    amounts: Amounts
    labels: Mapping[str, frozenset[str]]


@dataclass(frozen=True)
class PendingDemand:
    """What an actor, a task, or a placement group waits for.

    :param bundles: they are placed all at once, or none is.
    :param strict_spread: whether each must be on a node of its own.
    :param count: how many wait for the same.
    """

    bundles: tuple[Bundle, ...]
    strict_spread: bool = False
    count: int = 1


@dataclass(frozen=True)
class Node:
    """A node that is there."""

    free: Amounts
    labels: Mapping[str, str]


@dataclass(frozen=True)
class Idle:
    """A warm engine without a holder.

    :param since: seconds for which it has been idle.
    """

    name: str
    node: str
    amounts: Amounts
    since: float


def should_evict(name: str, registry: WarmEngineRegistry) -> bool:
    """Whether this engine must end so that what waits on the cluster finds room."""
    requests, nodes = pending()
    if not requests:
        return False
    known = {other: state for other, state in registry.states().items() if state is not None}
    idle = [Idle(other, one.node, one.amounts, one.since) for other, one in known.items() if one.is_free]
    ending = [(one.node, one.amounts) for one in known.values() if one.is_ending]
    return name in in_the_way(requests, with_free(nodes, ending), idle)


def in_the_way(
    requests: Iterable[PendingDemand], nodes: Mapping[str, Node], idle: Sequence[Idle]
) -> set[str]:
    """Names of the engines that must end so that these requests find room; longest idle ones first.

    A request that finds room as it is, or could not on any of these nodes, ends none.
    """
    room = _Room(
        {name: dict(node.free) for name, node in nodes.items()},
        sorted(idle, key=lambda one: (-one.since, one.name)),
    )
    for request in requests:
        if not any(any(bundle.amounts.values()) for bundle in request.bundles):
            continue  # it waits for something else
        for _ in range(request.count):
            if not room.left:
                break  # a backlog may be a million
            after = _placed(request, nodes, room)
            if after is None:
                break  # nor does another one find room
            room = after
    return {one.name for one in idle} - {one.name for one in room.left}


def with_free(nodes: Mapping[str, Node], soon: Iterable[tuple[str, Amounts]]) -> dict[str, Node]:
    """The nodes with what will soon be free on them: no other engine has to end for it.

    :param soon: by id of the node.
    """
    known = dict(nodes)
    for name, amounts in soon:
        if name in known:
            free = dict(known[name].free)
            _add(free, amounts, 1)
            known[name] = Node(free, known[name].labels)
    return known


@dataclass
class _Room:
    """What is free by node, and the idle engines that are left, the one that goes first in front."""

    free: dict[str, dict[str, float]]
    left: list[Idle]


def _placed(request: PendingDemand, nodes: Mapping[str, Node], room: _Room) -> _Room | None:
    """The room that is left when all bundles are placed; ``None`` if one finds none."""
    room = _Room({name: dict(free) for name, free in room.free.items()}, list(room.left))
    places: set[str] = set()
    for bundle in request.bundles:
        found = []
        for name, node in nodes.items():
            if _matches(bundle, node) and not (request.strict_spread and name in places):
                evicted = _evicted(
                    bundle.amounts, room.free[name], [one for one in room.left if one.node == name]
                )
                if evicted is not None:
                    found.append((len(evicted), name, evicted))
        if not found:
            return None
        _, place, evicted = min(found, key=lambda one: one[:2])
        for one in evicted:
            _add(room.free[place], one.amounts, 1)
            room.left.remove(one)
        _add(room.free[place], bundle.amounts, -1)
        places.add(place)
    return room


def _evicted(amounts: Amounts, free: Amounts, idle: Iterable[Idle]) -> list[Idle] | None:
    """Engines of one node whose end makes room; ``None`` if even the end of all does not."""
    room, evicted = dict(free), []
    for one in idle:
        if any(amounts.get(name, 0) > room.get(name, 0) + _LEAST for name in one.amounts):
            _add(room, one.amounts, 1)
            evicted.append(one)
    return evicted if _fits(amounts, room) else None


def _fits(amounts: Amounts, room: Amounts) -> bool:
    return all(room.get(name, 0) + _LEAST >= amount for name, amount in amounts.items())


def _matches(bundle: Bundle, node: Node) -> bool:
    return all(node.labels.get(name) in values for name, values in bundle.labels.items())


def _add(room: dict[str, float], amounts: Amounts, sign: int) -> None:
    for name, amount in amounts.items():
        room[name] = room.get(name, 0) + sign * amount


def pending() -> tuple[list[PendingDemand], dict[str, Node]]:
    """What waits on this cluster, and its nodes by id.

    Ray has no public call for it; its autoscaler asks the same. Nothing where Ray does not tell: warm engines
    then end at their time.
    """
    try:
        from ray._private.worker import global_worker
        from ray.autoscaler.v2.sdk import get_cluster_resource_state

        state = get_cluster_resource_state(global_worker.gcs_client)
        requests = [_demand([one.request], max(1, one.count)) for one in state.pending_resource_requests]
        requests += [_demand(group.requests) for group in state.pending_gang_resource_requests]
        nodes = {
            node.node_id.hex(): Node(dict(node.available_resources), dict(node.labels))
            for node in state.node_states
        }
    except Exception:  # of Ray's private API
        return [], {}
    return requests, nodes


def _demand(asked: Sequence[Any], count: int = 1) -> PendingDemand:
    """Of an actor, a task, or a placement group, whose strict strategies Ray tells as constraints."""
    constraints = [one for request in asked for one in request.placement_constraints]
    bundles = [Bundle(dict(one.resources_bundle), _labels(one)) for one in asked]
    if any(one.HasField("affinity") for one in constraints):
        bundles = [_together(bundles)]
    return PendingDemand(tuple(bundles), any(one.HasField("anti_affinity") for one in constraints), count)


def _together(bundles: Sequence[Bundle]) -> Bundle:
    amounts: dict[str, float] = {}
    labels: dict[str, frozenset[str]] = {}
    for bundle in bundles:
        _add(amounts, bundle.amounts, 1)
        for name, values in bundle.labels.items():
            labels[name] = labels.get(name, values) & values
    return Bundle(amounts, labels)


def _labels(asked: Any) -> dict[str, frozenset[str]]:
    """Of label selectors, the first, which Ray tries first, and of it what names values that are wanted."""
    return {
        one.label_key: frozenset(one.label_values)
        for selector in list(asked.label_selectors)[:1]
        for one in selector.label_constraints
        if one.operator == _IN
    }


_IN = 1
"""``LABEL_OPERATOR_IN`` of Ray's autoscaler.proto."""
