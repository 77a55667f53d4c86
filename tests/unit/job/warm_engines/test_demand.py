# SPDX-License-Identifier: Apache-2.0
"""Which idle engines make room: as few as can be, and none for what they can't help."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from airflow_provider_raybatch.job.warm_engines import demand as module
from airflow_provider_raybatch.job.warm_engines.demand import (
    Bundle,
    Idle,
    Node,
    PendingDemand,
    in_the_way,
    with_free,
)

GPU = {"GPU": 1.0}


def node(free: float, cpus: float = 8.0, **labels: str) -> Node:
    return Node({"GPU": free, "CPU": cpus}, labels)


def idle(count: int, place: str = "a", gpus: float = 1.0, since: float = 10.0) -> list[Idle]:
    return [Idle(f"{place}{number}", place, {"GPU": gpus}, since + number) for number in range(count)]


def asks(*amounts: float, cpus: float = 0.0, **labels: str) -> list[PendingDemand]:
    wanted = {name: frozenset({value}) for name, value in labels.items()}
    return [PendingDemand((Bundle({"GPU": gpus, "CPU": cpus}, wanted),)) for gpus in amounts]


def group(*amounts: float, strict_spread: bool = False) -> list[PendingDemand]:
    """One placement group."""
    return [PendingDemand(tuple(Bundle({"GPU": gpus}, {}) for gpus in amounts), strict_spread)]


@pytest.mark.parametrize(
    ("requests", "free", "engines", "ended"),
    [
        ([], 0, idle(2), set()),
        (asks(1), 0, idle(3), {"a2"}),  # the one that has been idle longest
        (asks(1, 1), 0, idle(3), {"a2", "a1"}),
        (asks(2), 0, idle(3), {"a2", "a1"}),
        (asks(2), 1, idle(3), {"a2"}),
        (asks(1), 1, idle(3), set()),  # Ray is about to place it
        (asks(1, 1), 1, idle(3), {"a2"}),
        (asks(4), 0, idle(3), set()),  # there is not enough, even without them
        (asks(0), 0, idle(3), set()),
        (asks(1, cpus=9), 0, idle(3), set()),
        (asks(2), 0, idle(1, gpus=4.0), {"a0"}),
        (asks(2, 2), 0, idle(2, gpus=4.0), {"a1"}),
    ],
)
def test_one_node(requests: list[PendingDemand], free: float, engines: list[Idle], ended: set[str]) -> None:
    assert in_the_way(requests, {"a": node(free)}, engines) == ended


def test_engines_of_one_node_make_room_together() -> None:
    nodes = {"a": node(0), "b": node(1)}
    engines = [*idle(2, "a", since=100.0), *idle(1, "b")]
    assert in_the_way(asks(2), nodes, engines) == {"b0"}
    assert in_the_way(asks(2, 2), nodes, engines) == {"b0", "a0", "a1"}


def test_another_kind_of_accelerator_is_no_help() -> None:
    def of_kind(kind: str) -> Node:
        return Node({f"accelerator_type:{kind}": 1.0, "GPU": 0.0}, {})

    request = PendingDemand((Bundle({"GPU": 1.0, "accelerator_type:H200": 0.001}, {}),))
    nodes = {"a": of_kind("L4"), "b": of_kind("H200")}
    assert in_the_way([request], nodes, idle(3, "a")) == set()
    assert in_the_way([request], nodes, [*idle(3, "a"), *idle(1, "b")]) == {"b0"}


def test_a_label_that_the_node_lacks_is_no_help() -> None:
    nodes = {"a": node(0, zone="one")}
    assert in_the_way(asks(1, zone="two"), nodes, idle(1)) == set()
    assert in_the_way(asks(1, zone="one"), nodes, idle(1)) == {"a0"}


def test_cpus_that_others_use_are_not_made_room_for() -> None:
    assert in_the_way(asks(1, cpus=2), {"a": node(0, cpus=1.0)}, idle(1)) == set()


@pytest.mark.parametrize(
    ("requests", "ended"),
    [
        (group(1, 1), {"a1", "a0"}),
        (group(2, 2), {"a1", "a0", "b1", "b0"}),
        (group(2, 2, 1), set()),  # Ray places none of them
        (group(1, 1, strict_spread=True), {"a1", "b1"}),
        (group(1, 1, 1, strict_spread=True), set()),  # there are two nodes
        (group(2, 3) + asks(1), {"a1"}),  # what comes after it gets what it leaves
    ],
)
def test_bundles_of_a_placement_group_find_room_together(
    requests: list[PendingDemand], ended: set[str]
) -> None:
    nodes = {"a": node(0), "b": node(0)}
    assert in_the_way(requests, nodes, [*idle(2, "a"), *idle(2, "b")]) == ended


def test_all_decide_alike() -> None:
    """Whatever the order in which an engine hears of the others."""
    nodes, engines = {"a": node(0)}, idle(6, since=0.0)
    alike: Sequence[Idle] = [Idle(one.name, one.node, one.amounts, 5.0) for one in engines]
    assert in_the_way(asks(1, 2), nodes, alike) == in_the_way(asks(1, 2), nodes, alike[::-1])


def test_what_ends_already_counts_as_free() -> None:
    """Else one request would end one engine after the other, while the first one takes seconds to end."""
    nodes = with_free({"a": node(0), "b": node(0)}, [("a", GPU), ("gone", GPU)])
    assert in_the_way(asks(1), nodes, idle(2)) == set()
    assert in_the_way(asks(1, 1), nodes, idle(2)) == {"a1"}


def test_a_backlog_is_not_gone_through(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = []
    matches = module._matches
    monkeypatch.setattr(module, "_matches", lambda *given: looks.append(1) or matches(*given))
    backlog = [PendingDemand((Bundle(wanted, {}),), count=10**12) for wanted in ({"GPU": 1.0}, {})]
    assert in_the_way(backlog, {"a": node(1)}, idle(3)) == {"a0", "a1", "a2"}
    assert len(looks) < 10
