# SPDX-License-Identifier: Apache-2.0
"""Waiting for an autoscaler: nodes that fit are requested while the job waits; and GPUs that are idle."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import ray
import ray.autoscaler.sdk

from airflow_provider_raybatch.contract.failures import FailureClass, PreflightError
from airflow_provider_raybatch.job.planning import autoscaler as autoscaler_limits
from airflow_provider_raybatch.job.planning import cluster_view
from airflow_provider_raybatch.job.planning.cluster_view import GpuTypes
from airflow_provider_raybatch.job.planning.node_groups import AutoscalerLimits, NodeGroup
from airflow_provider_raybatch.job.planning.plan import Plan

NODE = {"CPU": 32.0, "GPU": 8.0, "accelerator_type:H200": 1.0}


class Autoscaler:
    """Adds nodes for the requested bundles, each of the first group that fits."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.groups = [NODE]
        self.types = ["accelerator_type:H200"]
        self.asked: list[dict[str, float]] = []
        self.nodes: list[dict[str, Any]] = []
        self.now = 0.0

    def request(self, bundles: list[dict[str, float]]) -> None:
        """Stands for Ray's function: each call overrides the one before."""
        self.asked = bundles

    def sleep(self, seconds: float) -> None:
        """Let time pass, in which nodes join."""
        self.now += seconds
        for group, kind in zip(self.groups, self.types, strict=True):
            fit = [one for one in self.asked if all(group.get(name, 0) >= much for name, much in one.items())]
            if len(self.nodes) < min(self.most, sum(one["GPU"] for one in fit) / group["GPU"]):
                self.nodes.append({"Alive": True, "Resources": {**group, kind: 1.0}})
                return

    def limits(self) -> AutoscalerLimits:
        named = (NodeGroup(f"g{number}", node, 4) for number, node in enumerate(self.groups))
        return AutoscalerLimits(tuple(named))


@pytest.fixture
def autoscaler(monkeypatch: pytest.MonkeyPatch) -> Autoscaler:
    made = Autoscaler(most=4)
    monkeypatch.setattr(ray, "nodes", lambda: made.nodes)
    monkeypatch.setattr(autoscaler_limits, "limits", made.limits)
    monkeypatch.setattr(ray.autoscaler.sdk, "request_resources", made.request)
    clock = SimpleNamespace(monotonic=lambda: made.now, sleep=made.sleep)
    monkeypatch.setattr(cluster_view, "time", clock)
    return made


@pytest.mark.parametrize(
    "plan",
    [Plan(2, 1.0, 8, "H200", 8, 2, {}), Plan(1, 1.0, 16, None, 8, 2, {}, spans_nodes=True)],
    ids=["a node each", "over nodes"],
)
def test_requested_nodes_can_hold_the_replicas(autoscaler: Autoscaler, plan: Plan) -> None:
    cluster = cluster_view.wait_for(plan, 60.0, False, lambda phase: None, ExitStack())
    assert len(cluster.nodes) == 2


@pytest.mark.parametrize("named", [True, False])
def test_accelerator_type_is_requested_if_a_group_names_it(autoscaler: Autoscaler, named: bool) -> None:
    bare = {"CPU": 32.0, "GPU": 8.0}
    if named:
        autoscaler.groups = [{**bare, "accelerator_type:L4": 1.0}, NODE]
        autoscaler.types = ["accelerator_type:L4", "accelerator_type:H200"]
    else:
        autoscaler.groups = [bare]
    plan = Plan(1, 1.0, 8, "H200", 8, 2, {})
    assert len(cluster_view.wait_for(plan, 60.0, False, lambda phase: None, ExitStack()).nodes) == 1


def test_nodes_stay_requested_until_replicas_hold_them(autoscaler: Autoscaler) -> None:
    with ExitStack() as held:
        cluster_view.wait_for(Plan(2, 1.0, 8, None, 8, 2, {}), 60.0, False, lambda phase: None, held)
        assert autoscaler.asked == [{"CPU": 1.0, "GPU": 8}] * 2
    assert autoscaler.asked == []


def test_request_of_another_job_stays_where_nodes_are_there(autoscaler: Autoscaler) -> None:
    autoscaler.nodes.append({"Alive": True, "Resources": NODE})
    autoscaler.asked = [{"CPU": 9.0}]
    with ExitStack() as held:
        cluster_view.wait_for(Plan(1, 1.0, 8, None, 8, 2, {}), 60.0, False, lambda phase: None, held)
    assert autoscaler.asked == [{"CPU": 9.0}]


def test_request_is_withdrawn_when_the_job_gives_up(autoscaler: Autoscaler) -> None:
    autoscaler.most = 0
    with pytest.raises(PreflightError) as refused, ExitStack() as held:
        cluster_view.wait_for(Plan(1, 1.0, 8, None, 8, 2, {}), 0.05, False, lambda phase: None, held)
    assert autoscaler.asked == []
    assert refused.value.failure_class is FailureClass.STALLED
    assert str(refused.value).startswith("cluster_wait: 0.05 s are over and replicas: the job asks for 1 ")
    assert "; raise cluster_wait, ask for fewer replicas or smaller ones, or add" in str(refused.value)


def test_the_memory_of_this_node_is_no_more_than_it_has() -> None:
    import psutil

    most = psutil.virtual_memory().total + psutil.swap_memory().total
    assert most // 64 < cluster_view._memory_here() <= most


PLAN = Plan(4, 1.0, 2, None, 10, 2, {})
H100 = {"CPU": 8.0, "GPU": 8.0, "accelerator_type:H100": 1.0}


@pytest.mark.parametrize(
    ("plan", "idle", "nodes", "found"),
    [
        (PLAN, {"CPU": 8.0, "GPU": 8.0}, [H100], 4),
        (PLAN, {"CPU": 8.0, "GPU": 5.0}, [H100], 2),
        (PLAN, {"CPU": 1.0, "GPU": 8.0}, [H100], 1),
        (PLAN, {"CPU": 8.0}, [H100], 0),
        (replace(PLAN, replicas=1), {"CPU": 8.0, "GPU": 8.0}, [H100], 1),
        (replace(PLAN, gpus=0), {"CPU": 8.0, "GPU": 8.0}, [H100], 0),
        (replace(PLAN, cpus=0.0), {"GPU": 4.0}, [H100], 2),
        (replace(PLAN, accelerator_type="H100"), {"CPU": 8.0, "GPU": 8.0}, [H100, {"CPU": 4.0}], 4),
        (replace(PLAN, accelerator_type="H100"), {"CPU": 8.0, "GPU": 9.0}, [H100, {"GPU": 1.0}], 0),
    ],
)
def test_replicas_that_find_room(
    monkeypatch: pytest.MonkeyPatch,
    plan: Plan,
    idle: dict[str, float],
    nodes: list[dict[str, float]],
    found: int,
) -> None:
    monkeypatch.setattr(ray, "available_resources", lambda: idle)
    monkeypatch.setattr(ray, "nodes", lambda: [{"Alive": True, "Resources": one} for one in nodes])
    assert cluster_view.idle_replicas(plan) == found


def node(*types: str, label: str | None = None, name: str = "n", alive: bool = True) -> dict[str, Any]:
    resources = {"GPU": 1.0, **{f"accelerator_type:{one}": 1.0 for one in types}}
    labels = {} if label is None else {"ray.io/accelerator-type": label}
    return {"NodeID": name, "Alive": alive, "Resources": resources if alive else {}, "Labels": labels}


@pytest.mark.parametrize(
    ("found", "asked", "priced", "kind"),
    [
        (node("H100"), None, (), "H100"),
        (node(), None, (), ""),
        (node(label="L4"), None, (), "L4"),
        (node("A100", "A100-40G"), None, ("*",), "A100-40G"),
        (node("A100", "A100-40G"), None, ("A100", "*"), "A100"),
        (node("A100", "A100-40G"), None, ("A100", "A100-40G"), "A100-40G"),
        (node("A100", "A100-40G"), "A100", ("H100",), "A100"),
        (node("MINE", "T4"), "MINE", (), "MINE"),
    ],
)
def test_type_of_a_node(found: dict[str, Any], asked: str | None, priced: tuple[str, ...], kind: str) -> None:
    assert cluster_view.type_of(found, asked, priced) == kind


def test_a_node_that_came_later_or_died_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes, asked = [node("H100", name="a")], []
    monkeypatch.setattr(ray, "nodes", lambda: asked.append(1) or nodes)
    types = GpuTypes()
    assert [types("a"), types("a")] == ["H100", "H100"]
    nodes[:] = [node(name="a", alive=False), node("L4", name="b")]
    assert [types("b"), types("a"), types("gone"), types("gone")] == ["L4", "H100", "", ""]
    assert len(asked) == 3
    assert types.look() == {"L4"}


def test_a_node_that_died_before_a_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has its label, or the type that was asked for: without a price, max_cost ended the job."""
    monkeypatch.setattr(ray, "nodes", lambda: [node(label="L4", name="a", alive=False)])
    assert [
        GpuTypes()("a"),
        GpuTypes()("gone"),
        GpuTypes("H100")("gone"),
    ] == ["L4", "", "H100"]
    assert GpuTypes().look() == set()
