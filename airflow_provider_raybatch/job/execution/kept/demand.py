# SPDX-License-Identifier: Apache-2.0
"""Which idle engines make room for what waits on the cluster.

Each decides for itself, from what all see: so one request ends the engines on one node that are in its way,
and no others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Amounts = Mapping[str, float]
"""Ray's resources by name."""

_LEAST = 1e-6


@dataclass(frozen=True)
class Request:
    """What an actor, a task, or a bundle of a placement group waits for.

    :param labels: that its node must have, by name.
    :param count: how many wait for the same.
    """

    amounts: Amounts
    labels: Mapping[str, frozenset[str]]
    count: int = 1


@dataclass(frozen=True)
class Node:
    """A node that is there."""

    free: Amounts
    labels: Mapping[str, str]


@dataclass(frozen=True)
class Idle:
    """A kept engine without a user.

    :param since: seconds for which it has been idle.
    """

    name: str
    node: str
    amounts: Amounts
    since: float


def in_the_way(requests: Iterable[Request], nodes: Mapping[str, Node], idle: Sequence[Idle]) -> set[str]:
    """Names of the engines that must end so that these requests find room; longest idle ones first.

    A request that finds room as it is, or could not on any of these nodes, ends none.
    """
    free = {name: dict(node.free) for name, node in nodes.items()}
    left = sorted(idle, key=lambda one: (-one.since, one.name))
    ended: set[str] = set()
    for request in requests:
        if not any(request.amounts.values()):
            continue  # it waits for something else
        for _ in range(request.count):
            ways = []
            for name, node in nodes.items():
                way = _way(request.amounts, free[name], [one for one in left if one.node == name])
                if way is not None and _matches(request, node):
                    ways.append((len(way), name, way))
            if not (ways and left):
                break  # nor does another one find room, or none is left to end: a backlog may be a million
            _, place, way = min(ways, key=lambda found: found[:2])
            for one in way:
                _add(free[place], one.amounts, 1)
                left.remove(one)
                ended.add(one.name)
            _add(free[place], request.amounts, -1)
    return ended


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


def _way(amounts: Amounts, free: Amounts, idle: Iterable[Idle]) -> list[Idle] | None:
    """Engines of one node whose end makes room; ``None`` if even the end of all does not."""
    room, way = dict(free), []
    for one in idle:
        if any(amounts.get(name, 0) > room.get(name, 0) + _LEAST for name in one.amounts):
            _add(room, one.amounts, 1)
            way.append(one)
    return way if _fits(amounts, room) else None


def _fits(amounts: Amounts, room: Amounts) -> bool:
    return all(room.get(name, 0) + _LEAST >= amount for name, amount in amounts.items())


def _matches(request: Request, node: Node) -> bool:
    return all(node.labels.get(name) in values for name, values in request.labels.items())


def _add(room: dict[str, float], amounts: Amounts, sign: int) -> None:
    for name, amount in amounts.items():
        room[name] = room.get(name, 0) + sign * amount


def pending() -> tuple[list[Request], dict[str, Node]]:
    """What waits on this cluster, and its nodes by id.

    Ray has no public call for it; its autoscaler asks the same. Nothing where Ray does not tell: kept engines
    then end at their time.
    """
    try:
        from ray._private.worker import global_worker
        from ray.autoscaler.v2.sdk import get_cluster_resource_state

        state = get_cluster_resource_state(global_worker.gcs_client)
        requests = [_request(one.request, max(1, one.count)) for one in state.pending_resource_requests]
        for group in state.pending_gang_resource_requests:
            requests += map(_request, group.requests)
        nodes = {
            node.node_id.hex(): Node(dict(node.available_resources), dict(node.labels))
            for node in state.node_states
        }
    except Exception:  # of Ray's private API
        return [], {}
    return requests, nodes


def _request(asked: Any, count: int = 1) -> Request:
    """Of label selectors, the first, which Ray tries first, and of it what names values that are wanted."""
    labels: dict[str, frozenset[str]] = {}
    for selector in list(asked.label_selectors)[:1]:
        for one in selector.label_constraints:
            if one.operator == _IN:
                labels[one.label_key] = frozenset(one.label_values)
    return Request(dict(asked.resources_bundle), labels, count)


_IN = 1
"""``LABEL_OPERATOR_IN`` of Ray's autoscaler.proto."""
