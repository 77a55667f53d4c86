# SPDX-License-Identifier: Apache-2.0
"""Which idle engines make room: as few as can be, and none for what they can't help."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from airflow_provider_raybatch.job.warm_engines import demand as module
from airflow_provider_raybatch.job.warm_engines.demand import Bundle, Node, PendingDemand, units
from airflow_provider_raybatch.job.warm_engines.registry import WarmEngineState


def nodes(a: float = 0, b: float | None = None, cpus: float = 8.0) -> dict[str, Node]:
    """One node or two with so many free GPUs; the zone of each is its name."""
    free = {"a": a} if b is None else {"a": a, "b": b}
    return {name: Node(units({"GPU": gpus, "CPU": cpus}), {"zone": name}) for name, gpus in free.items()}


def idle(count: int, place: str = "a", gpus: float = 1.0, since: float = 10.0) -> dict[str, Any]:
    """Engines of a node; of `a0`, `a1`, ... the last has been idle longest."""
    return {
        f"{place}{n}": WarmEngineState("echo", True, False, since + n, 60, place, {"GPU": gpus})
        for n in range(count)
    }


def asks(*gpus: float, cpus: float = 0.0, **labels: str) -> list[PendingDemand]:
    """A task or an actor for each."""
    wanted = {name: frozenset({value}) for name, value in labels.items()}
    return [PendingDemand([Bundle(units({"GPU": one, "CPU": cpus}), wanted)]) for one in gpus]


def group(*gpus: float) -> list[PendingDemand]:
    """One placement group."""
    return [PendingDemand([Bundle(units({"GPU": one})) for one in gpus])]


def in_the_way(requests: Sequence[PendingDemand], free: dict[str, Node], engines: Mapping[str, Any]) -> str:
    """Names of the engines that end, and the same in whatever order each engine hears of the others."""
    backwards = {name: Node(node.free.copy(), node.labels) for name, node in free.items()}
    ended = module.in_the_way(requests, free, engines)
    assert ended == module.in_the_way(requests, backwards, dict(reversed(engines.items())))
    return " ".join(sorted(ended))


@pytest.mark.parametrize(
    ("requests", "free", "engines", "ended"),
    [
        ([], 0, idle(2), ""),
        (asks(1), 0, idle(3), "a2"),  # the one that has been idle longest
        (asks(1, 1), 0, idle(3), "a1 a2"),
        (asks(2), 0, idle(3), "a1 a2"),
        (asks(2), 1, idle(3), "a2"),
        (asks(1, 1), 1, idle(3), "a2"),
        (asks(4), 0, idle(3), ""),  # there is not enough, even without them
        (asks(0), 0, idle(3), ""),
        (asks(1, cpus=9), 0, idle(3), ""),  # others use the CPUs
        (asks(2), 0, idle(1, gpus=4.0), "a0"),
        (asks(2, 2), 0, idle(2, gpus=4.0), "a1"),
        (asks(1, 2), 0, idle(6, since=5.0), "a3 a4 a5"),
        (asks(1, zone="b"), 0, idle(3), ""),
        (asks(1), 1, idle(3), "a2"),  # Ray counts otherwise: the free one is two halves, say
    ],
)
def test_one_node(requests: list[PendingDemand], free: float, engines: dict[str, Any], ended: str) -> None:
    assert in_the_way(requests, nodes(free), engines) == ended


@pytest.mark.parametrize(
    ("requests", "ended"),
    [
        (asks(1), "b1"),
        (asks(2), "b0 b1"),
        (asks(1, zone="a"), "a1"),
        (group(1, 1), "b0 b1"),
        (group(2, 2), "a0 a1 b0 b1"),
        (group(2, 2, 1), ""),  # Ray places none of them
        (group(1, 3), ""),
        (group(2, 3) + asks(1), "b1"),
    ],
)
def test_two_nodes(requests: list[PendingDemand], ended: str) -> None:
    assert in_the_way(requests, nodes(0, 0), {**idle(2, "a"), **idle(2, "b", since=50.0)}) == ended


def test_another_kind_of_accelerator_is_no_help() -> None:
    kinds = {name: units({f"accelerator_type:{kind}": 1}) for name, kind in (("a", "L4"), ("b", "H200"))}
    request = [PendingDemand([Bundle(units({"GPU": 1, "accelerator_type:H200": 0.001}))])]
    for engines, ended in ((idle(3), ""), ({**idle(3), **idle(1, "b")}, "b0")):
        assert (
            in_the_way(request, {name: Node(kind.copy()) for name, kind in kinds.items()}, engines) == ended
        )


def test_what_ends_already_counts_as_free() -> None:
    """Else one request would end one engine after the other, while the first one takes seconds to end."""
    ending = WarmEngineState("echo", False, True, 0, 0, "a", {"GPU": 1.0})
    engines = {**idle(2), "ending": ending, "silent": None}
    assert in_the_way(asks(1), nodes(0, 0), engines) == ""
    assert in_the_way(asks(1, 1), nodes(0, 0), engines) == "a1"


def test_a_backlog_is_not_gone_through(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = []
    could_serve = Node.could_serve
    monkeypatch.setattr(Node, "could_serve", lambda *given: looks.append(1) or could_serve(*given))
    backlog = [PendingDemand([Bundle(units(wanted))], count=10**12) for wanted in ({"GPU": 1.0}, {})]
    assert in_the_way(backlog, nodes(1), idle(3)) == "a0 a1 a2"
    assert len(looks) < 50
