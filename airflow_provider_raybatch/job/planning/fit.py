# SPDX-License-Identifier: Apache-2.0
"""Whether a cluster can ever hold what a plan asks for.

Pure, so that every answer is tested without a cluster.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from airflow_provider_raybatch.job.planning.plan import Cluster, Plan

_TYPE = "accelerator_type:"
_NODES_STARTED = 900.0
_NODES_RETURNED = 300.0


@dataclass(frozen=True)
class Fit:
    """The answer, and why.

    :param verdict: ``fits`` now, ``wait`` for the autoscaler, or ``never``.
    :param situation: what is asked for and what is there.
    :param outlook: what to do, or what is done.
    """

    verdict: Literal["fits", "wait", "never"]
    situation: str
    outlook: str = ""

    @property
    def sentence(self) -> str:
        """Situation and outlook."""
        return "; ".join(part for part in (self.situation, self.outlook) if part) + "."


def longest_wait(cluster_wait: float | None, autoscales: bool, held_before: bool) -> float:
    """Seconds to wait for missing nodes.

    :param cluster_wait: the user's word, which goes before all else.
    :param autoscales: whether there is an autoscaler that says so; only v2 (KubeRay, Anyscale) does.
    :param held_before: whether an earlier submission of the run had its nodes. After a restart of the head
        they are expected back, and without this a retry would fail for good, as if they could never come.
    """
    if cluster_wait is not None:
        return cluster_wait
    if autoscales:
        return _NODES_STARTED
    return _NODES_RETURNED if held_before else 0.0


def judge(plan: Plan, cluster: Cluster, autoscaling: bool) -> Fit:
    """Place the replicas node by node, largest nodes first.

    A replica stays on one node, so what counts is each node's total, not the cluster's sum; with vLLM's Ray
    executor it may span nodes, GPU by GPU. What other jobs hold at the moment doesn't matter: they end.

    :param autoscaling: whether the cluster has an autoscaler at all.
    """
    ask = _ask(plan)
    placed = sum(_copies(place, ask, plan.replicas) for place in cluster.places(plan.spans_nodes))
    wanted = plan.first_replicas or plan.replicas
    if placed >= wanted < plan.replicas:
        return Fit(
            "fits", f"the cluster holds {placed} of {plan.replicas} {_noun(plan)} of {_shown(ask)} by now"
        )
    if placed >= plan.replicas:
        return Fit("fits", f"the cluster holds {plan.replicas} {_noun(plan)} of {_shown(ask)}")
    missing = wanted - placed
    largest = max(cluster.nodes, key=lambda node: (node.get("GPU", 0.0), node.get("CPU", 0.0)), default={})
    where = "over any nodes" if plan.spans_nodes else "on one node each"
    situation = (
        f"replicas: the job asks for {plan.replicas} {_noun(plan)} of {_shown(ask)} {where}, and "
        f"the cluster has room for {placed} (largest node: {_shown(_relevant(largest, ask))})"
    )
    remedy = "ask for fewer replicas or smaller ones, or add nodes"
    if not autoscaling:
        return Fit("never", situation, f"{remedy}, or set cluster_wait if they are about to join")
    if cluster.ceiling is None:
        return Fit("wait", situation, f"waiting for {missing} more from the autoscaler")
    # What an autoscaler may reach is told in CPUs and GPUs, not in types of accelerators.
    short = [
        name
        for name, amount in ask.items()
        if not name.startswith(_TYPE) and cluster.ceiling.get(name, 0.0) < amount * wanted
    ]
    if short:
        reach = _shown(_relevant(cluster.ceiling, ask))
        return Fit("never", f"{situation}; the autoscaler may reach only {reach} in all", remedy)
    return Fit("wait", situation, f"waiting for {missing} more from the autoscaler")


def _ask(plan: Plan) -> dict[str, float]:
    ask: dict[str, float] = {"CPU": plan.cpus}
    if plan.gpus:
        ask["GPU"] = float(plan.gpus)
    if plan.accelerator_type:
        ask[_TYPE + plan.accelerator_type] = 0.001
    return ask


def _copies(node: dict[str, float], ask: dict[str, float], most: int) -> int:
    copies = float(most)
    for name, amount in ask.items():
        copies = min(copies, (node.get(name, 0.0) + 1e-9) // amount)
    return int(copies)


def _relevant(resources: dict[str, float], ask: dict[str, float]) -> dict[str, float]:
    return {name: resources.get(name, 0.0) for name in ask}


def _noun(plan: Plan) -> str:
    return "replica" if plan.replicas == 1 else "replicas"


def _shown(resources: dict[str, float]) -> str:
    names = [
        f"{amount:g} {name}" if not name.startswith(_TYPE) else f"an {name.removeprefix(_TYPE)}"
        for name, amount in resources.items()
        if not name.startswith(_TYPE) or amount
    ]
    return " and ".join(names) or "nothing"
