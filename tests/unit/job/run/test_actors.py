# SPDX-License-Identifier: Apache-2.0
"""Which actors are ended that wait in vain, and which placement groups go, on a Ray of names alone."""

from __future__ import annotations

from typing import Any

import pytest
import ray

from airflow_provider_raybatch.job.planning.plan import Plan
from airflow_provider_raybatch.job.run import replicas
from airflow_provider_raybatch.job.run.replicas import ReplicaActors


class NamesOfRay:
    """:ivar named: actors that have not ended. :ivar groups: placement groups that are there."""

    def __init__(self) -> None:
        self.named: list[str] = []
        self.groups: list[Any] = []
        self.is_away = False

    def start(self, options: dict[str, Any]) -> str:
        """As Ray Data starts an actor."""
        assert options["name"] not in self.named
        self.named.append(options["name"])
        return str(options["name"])

    def names(self) -> list[str]:
        if self.is_away:
            raise ray.exceptions.GetTimeoutError
        return list(self.named)

    def group(self, bundles: list[dict[str, float]], strategy: str) -> Any:
        assert strategy == "PACK"
        self.groups.append(bundles)
        return self.groups[-1]


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> NamesOfRay:
    made = NamesOfRay()
    monkeypatch.setattr(ray.util, "list_named_actors", made.names)
    monkeypatch.setattr(ray, "get_actor", lambda name: name)
    monkeypatch.setattr(ray, "kill", made.named.remove)
    monkeypatch.setattr(replicas, "placement_group", made.group)
    monkeypatch.setattr(replicas, "remove_placement_group", lambda group: made.groups.remove(group))
    monkeypatch.setattr(replicas, "PlacementGroupSchedulingStrategy", lambda group, **_: group)
    return made


def plan(replicas: int, spans_nodes: bool = False) -> Plan:
    return Plan(replicas, 1.0, 2, None, 8, 2, {}, spans_nodes=spans_nodes, fewest_replicas=1)


def test_waiting_actors_end_after_one_that_left(cluster: NamesOfRay) -> None:
    replicas = ReplicaActors(plan(4))
    make = replicas.options()
    first, second, _, _ = (cluster.start(make()) for _ in range(4))
    replicas.end_unused({first, second}, set())
    replicas.end_unused({first, second}, {second})
    assert len(cluster.named) == 4  # Ray Data has not dropped any
    cluster.named.remove(second)
    replicas.end_unused({first, second}, {second})
    assert cluster.named == [first]
    replicas.end_unused({first, second}, {second})


def test_the_end_of_one_that_has_not_left_ends_no_other(cluster: NamesOfRay) -> None:
    replicas = ReplicaActors(plan(3))
    make = replicas.options()
    first, second, _ = (cluster.start(make()) for _ in range(3))
    replicas.end_unused({first, second}, set())
    cluster.named.remove(second)
    replicas.end_unused({first, second}, set())
    assert len(cluster.named) == 2


def test_a_placement_group_goes_with_its_actor(cluster: NamesOfRay) -> None:
    replicas = ReplicaActors(plan(2, spans_nodes=True))
    make = replicas.options()
    first, second = cluster.start(make()), cluster.start(make())
    assert cluster.groups == [[{"GPU": 1.0, "CPU": 1.0}, {"GPU": 1.0}]] * 2
    replicas.end_unused({first}, set())
    cluster.is_away = True
    cluster.named.remove(second)
    replicas.end_unused({first}, set())
    assert len(cluster.groups) == 2
    cluster.is_away = False
    replicas.end_unused({first}, set())
    assert len(cluster.groups) == 1
    replicas.close()
    assert cluster.groups == []


def test_to_look_at_the_options_makes_no_placement_group(cluster: NamesOfRay) -> None:
    """As a detector of Ray Data does before actors start, between, and each half minute."""
    replicas = ReplicaActors(plan(2, spans_nodes=True))
    make = replicas.options()
    for _ in range(2):
        make()
        cluster.start(make())
        make()
    for _ in range(3):
        assert set(make()) == {"name", "scheduling_strategy"}
    assert len(cluster.groups) == 2
