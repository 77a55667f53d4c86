# SPDX-License-Identifier: Apache-2.0
"""Whether a cluster can ever hold what a plan asks for. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from airflow_provider_raybatch.contract.arguments.limits import close_types, knows
from airflow_provider_raybatch.job.planning.node_groups import ACCELERATOR, request, shown
from airflow_provider_raybatch.job.planning.plan import ClusterView, Plan

_NODES_STARTED = 900.0
_NODES_RETURNED = 300.0
_LACKS_GPUS = "add nodes with GPUs, or leave out what asks for them"


@dataclass(frozen=True)
class Fit:
    """The answer.

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

    :param cluster_wait: the user's setting, which takes precedence.
    :param autoscales: whether there is an autoscaler whose node groups are known.
    :param held_before: whether an earlier submission of the run had its nodes: they are expected back after a
        restart of the head.
    """
    if cluster_wait is not None:
        return cluster_wait
    if autoscales:
        return _NODES_STARTED
    return _NODES_RETURNED if held_before else 0.0


def assess(plan: Plan, cluster: ClusterView, autoscaling: bool) -> Fit:
    """Place the replicas node by node.

    A replica stays on one node, so each node's total counts, not the cluster's sum; with vLLM's Ray executor
    it may span nodes. What other jobs hold now doesn't matter, since they end.

    :param autoscaling: whether nodes may join: by an autoscaler, or because the user says so.
    """
    asked = request(plan.cpus, plan.gpus, plan.accelerator_type)
    placed = cluster.holds(asked, plan.spans_nodes)
    wanted = plan.fewest
    if placed >= wanted:
        held = min(placed, plan.replicas)
        return Fit("fits", f"the cluster holds {held} of {plan.replicas} {_noun(plan)} of {shown(asked)}")
    missing = wanted - placed
    largest = max(cluster.nodes, key=lambda node: (node.get("GPU", 0.0), node.get("CPU", 0.0)), default={})
    where = "over any nodes" if plan.spans_nodes else "on one node each"
    field, remedy = "replicas", "ask for fewer replicas or smaller ones, or add nodes"
    if plan.gpus and not cluster.has_gpus:
        field = "num_gpus" if plan.accelerator_type is None else "accelerator_type"
        field, remedy = ("engine_args" if plan.gpus > 1 else field), _LACKS_GPUS
    room = {name: largest.get(name, 0.0) for name in asked}
    situation = (
        f"{field}: the job asks for {plan.number_of_replicas} {_noun(plan)} of {shown(asked)} {where}, and "
        f"the cluster has room for {placed} (largest node: {shown(room)})"
    )
    situation += _missing_type(plan.accelerator_type, cluster)
    if not autoscaling:
        return Fit("never", situation, f"{remedy}, or set cluster_wait if they are about to join")
    if cluster.autoscaler is not None and (most := cluster.may_hold(asked, plan.spans_nodes)) < wanted:
        added = f"with all that the autoscaler may add there is room for {most}"
        groups = cluster.autoscaler.sentence(asked)
        return Fit("never", f"{situation}; {added}: {groups}", f"{remedy}, or change the node groups")
    return Fit("wait", situation, f"waiting for {missing} more from the autoscaler")


def _missing_type(wanted: str | None, cluster: ClusterView) -> str:
    """Tells a misspelt accelerator type from one whose nodes are missing."""
    names = {name for node in cluster.nodes for name in node if name.startswith(ACCELERATOR)}
    present = sorted(name.removeprefix(ACCELERATOR) for name in names)
    if wanted is None or wanted in present:
        return ""
    found = f"they have {', '.join(present)}" if present else "they have none"
    close = "" if knows(wanted) else ", ".join(map(repr, close_types(wanted, present)))
    near = f"; close to it: {close}" if close else ""
    return f"; no node has accelerator_type {wanted!r} ({found}{near})"


def _noun(plan: Plan) -> str:
    return "replica" if plan.replicas == 1 else "replicas"
