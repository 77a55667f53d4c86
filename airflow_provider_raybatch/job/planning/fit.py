# SPDX-License-Identifier: Apache-2.0
"""Whether a cluster can ever hold what a plan asks for, and the share of a GPU a model. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from airflow_provider_raybatch.contract.text import count_of
from airflow_provider_raybatch.job.planning.engine_memory import (
    DEFAULT_UTILIZATION,
    GIB,
    Gpu,
    sizes_of,
    weights_of_gpu,
)
from airflow_provider_raybatch.job.planning.model_fit import CLEARLY, ModelSizes, gib
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
    return f"; no node has accelerator_type {wanted!r} (they have {', '.join(present) or 'none'})"


def _noun(plan: Plan) -> str:
    return "replica" if plan.replicas == 1 else "replicas"


UTILIZATION = "gpu_memory_utilization"
OUTSIDE = int(0.6 * GIB)
"""Of each engine, beside what `gpu_memory_utilization` bounds: vLLM counts from when CUDA has its context,
which takes about half a GiB, so n engines on a GPU have n contexts that none of them counts. An engine alone
has the 8 % for it that vLLM leaves free."""
_LEAST = 0.001
_LEAST_ROW = 1024
"""Tokens that a cache must hold where the user sets no `max_model_len`: the job may derive a shorter one than
the model's own."""
_STEPS = 20
"""A share that is proposed is a multiple of 1/20."""


def utilization_of(share: float, gpu_bytes: int | None) -> float:
    """`gpu_memory_utilization` of an engine that takes this share of a GPU, so that all shares fit on it.

    :param gpu_bytes: of the whole GPU; ``None`` if they are not known.
    """
    if share >= 1:
        return DEFAULT_UTILIZATION
    part = share * DEFAULT_UTILIZATION - (OUTSIDE / gpu_bytes if gpu_bytes else 0.0)
    return max(_LEAST, math.floor(part * 1000) / 1000)


def with_utilization(engine_args: Mapping[str, Any], share: float | None, gpu: Gpu | None) -> dict[str, Any]:
    """`engine_args` with the memory of the share, unless the user has set it.

    :param share: `num_gpus`; ``None`` for whole GPUs.
    """
    if share is None or share >= 1 or gpu is None or engine_args.get(UTILIZATION) is not None:
        return dict(engine_args)
    return {**engine_args, UTILIZATION: utilization_of(share, gpu.memory)}


def share_refusal(
    model: ModelSizes,
    name: str,
    engine_args: Mapping[str, Any],
    share: float,
    gpus: Iterable[Gpu],
    tokens: int = 0,
    has_cache: bool = True,
) -> str | None:
    """Why the share of no GPU of these holds the model, in one sentence; ``None`` if one may.

    Weights and the cache of one row count, so nothing is refused that may work. What is proposed also has
    room for a step.

    :param name: of the model.
    :param tokens: of the row that the cache must hold at least; by default the user's `max_model_len`.
    :param has_cache: whether the engine has a KV cache, which most pooling models lack.
    """
    largest = max(gpus, key=lambda gpu: gpu.largest, default=None)
    if largest is None:
        return None
    needed = _tokens_needed(engine_args, tokens, model)
    of_gpu = replace(largest, memory=largest.largest)
    sizes = sizes_of(
        {**with_utilization(engine_args, share, of_gpu), "max_model_len": needed}, model.shape, of_gpu
    )
    if sizes is None or sizes.fixed_cache is not None:
        return None
    weights = weights_of_gpu(model.shape, sizes, model.stored)
    row = model.row(sizes) if has_cache else 0
    part = sizes.utilization * largest.largest
    if weights / (CLEARLY if model.shape.needs_files else 1) + row <= part:
        return None
    fits = smallest_share(model, engine_args, largest, needed)
    remedy = f"set num_gpus to at least {fits:g}" if fits is not None and fits < 1 else "leave num_gpus out"
    remedy += f" without {UTILIZATION}" if engine_args.get(UTILIZATION) is not None else ""
    of_row = f" and a KV cache of {count_of(needed, 'token')} {gib(row)}" if row >= GIB / 20 else ""
    return (
        f"num_gpus: {share:g} of {largest.name} gives an engine at most {gib(part)} ({UTILIZATION} "
        f"{sizes.utilization:g}), and the weights of {name!r} take "
        f"{gib(weights)}{of_row}; {remedy}, or choose a smaller model or larger GPUs."
    )


def _tokens_needed(engine_args: Mapping[str, Any], tokens: int, model: ModelSizes) -> int:
    given = engine_args.get("max_model_len")
    needed = given if isinstance(given, int) and given > 0 else max(tokens, _LEAST_ROW)
    return min(needed, model.shape.context or needed)


def smallest_share(model: ModelSizes, engine_args: Mapping[str, Any], gpu: Gpu, tokens: int) -> float | None:
    """The smallest share that holds weights, a step and a row of so many tokens; ``None`` if none does."""
    free = {name: value for name, value in engine_args.items() if name != UTILIZATION}
    for step in range(1, _STEPS + 1):
        share = step / _STEPS
        given = {**with_utilization(free, share, gpu), "max_model_len": max(1, tokens)}
        sizes = sizes_of(given, model.shape, gpu)
        if sizes is not None and model.memory(sizes, gpu.memory).starts:
            return share
    return None
